"""Code for releases, the Hugging Face Hub and shards of public texts. All of it can run on volunteers' machines."""
