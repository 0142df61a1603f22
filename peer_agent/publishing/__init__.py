"""What the site lets a child process do: prepare a text, make the first snapshot, measure one, make a release.

Run as `python -m peer_agent.publishing COMMAND …`. Not responsible for where files are kept or who may see them.
"""
