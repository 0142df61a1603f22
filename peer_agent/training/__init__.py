"""What a trainer computes: model, replica, optimizer, data, inner loop. torch lives here alone.

Not responsible for who computes what (`protocol`), for averaging or for moving bytes: gradients leave as numpy arrays
and averages come back as numpy arrays.
"""
