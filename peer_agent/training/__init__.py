"""The parts of a trainer that need torch: model, replica, optimizer, data and inner loop. `protocol` decides which
units each machine computes. Other packages send and average the gradients, which they handle as numpy arrays.
"""
