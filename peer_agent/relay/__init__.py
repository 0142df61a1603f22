"""The process of a relay or an auxiliary. A relay serves all runs of a site; an auxiliary serves one. Neither needs
torch.
"""
