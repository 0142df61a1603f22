"""Long work that nothing waits for at once takes turns, so that a thread of the worker is left for everything else."""

import threading

# To be acquired without waiting: whoever gets none comes again. Replays follow one another without a pause in a run
# whose steps are short, so what is measured for people to see does not wait for them.
replaying = threading.Lock()
measuring = threading.Lock()
fetching = threading.Lock()  # of texts and models from the Hub
trying = threading.Lock()  # of released models, by visitors
packing = threading.Lock()  # of checkpoints for the Hub
