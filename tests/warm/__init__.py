"""Fast process starts: a process that has loaded torch forks for each agent and for each child of the site.

Loading torch and transformers costs five seconds of a core, more than most tests. A forked process is real: it has its
own environment, folder and descriptors, and can be killed by its id. Our own modules are loaded after the fork, since
some read the environment. Journeys about installing or starting use the real programs.
"""
