"""The Hugging Face Hub: releases on their way to it, and texts and models that come from it."""
