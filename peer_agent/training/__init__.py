"""The parts of a trainer that need torch: model, replica, optimizer, data and inner loop. `protocol` decides which
machine computes what. Other packages average and send. Gradients and averages are numpy arrays.
"""
