"""The lowest layer; every other package can import it.

errors         UserError, for bad input
refusal        prints a UserError once, even if several ranks report it
stopping       Ctrl-C, SIGTERM and SIGHUP
console        terminal output, and the exit code of a program
on_import      prepares each process of a job before it imports a library
ranks          communication between ranks outside the model
atomic         folders and files that appear complete or not at all
tensor_file    safetensors files written by many ranks at once
untrusted      readers of untrusted files
cache          the cache folder
cards          specifications of Ascend cards and their links
peak_flops     --peak_tflops
auto_cast      input casts under paddle.amp.auto_cast
json_rows      JSON with one record per line
"""
