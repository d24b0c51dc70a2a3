"""The bundled image-text encoder: scenes (what is seen), captions (what may be said), training, and its model card."""
