"""A vision-language model that can be trained: loaded by its name, asked with pictures and words, its replies scored
token by token. Nothing here knows a model family: the model's own files prepare prompts, tokens and pictures."""
