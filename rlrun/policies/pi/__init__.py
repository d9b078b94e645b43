"""pi0 (arXiv 2410.24164) and pi0.5 (2504.16054): PaliGemma and an action expert, by flow matching."""
