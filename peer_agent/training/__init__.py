"""Everything that needs torch: model, replica, optimizer, data and inner loop of a trainer.

`protocol` decides who computes what; other rooms average and move bytes. Gradients and averages are numpy arrays.
"""
