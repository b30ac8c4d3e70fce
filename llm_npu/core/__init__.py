"""What every package may use: ranks, refusals, output, files that appear whole, untrusted files, cards."""
