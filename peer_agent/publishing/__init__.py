"""Code for releases, the Hugging Face Hub and shards of public texts. Volunteers' machines can run all of it."""
