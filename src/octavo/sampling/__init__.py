"""From logits to tokens: penalties, filters, Gumbel-max with a counter-based generator, logprobs."""
