"""How the bundled vision-language model was made: a tokenizer of phrases, a small LLaVA, and a curriculum of games in
which it learns to see and to write, but not to play."""
