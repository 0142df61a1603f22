"""Processes that start at once: one that has loaded torch forks for each agent, and for each child of the site.

Loading torch and transformers costs a process five seconds of a core, more than most tests. What is forked is a real
process, with an environment, a folder and descriptors of its own, and can be killed by its id. Our own modules are
loaded after the fork, since some read the environment. Journeys about installing or starting use the real programs.
"""
