"""Fast process starts: a process that has loaded torch forks for each agent and each of the site's child processes.

Loading torch and transformers takes five seconds of CPU time, more than most tests. A forked process is a real one: it
has its own environment, folder and descriptors, and can be killed by its id. Our own modules are loaded after the
fork, because some of them read the environment. End-to-end tests of installing or starting use the real programs.
"""
