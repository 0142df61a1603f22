"""The process of a relay or auxiliary. A relay serves all of a site's runs; an auxiliary serves one. Neither needs
torch.
"""
