"""The lowest layer, which every package may use.

errors         UserError, for bad input
refusal        prints such an error once, however many ranks report it
stopping       Ctrl-C, SIGTERM and SIGHUP
console        terminal output, and the exit code of a program
on_import      prepares the processes of a job for the import of a library
ranks          communication between ranks outside the model
atomic         folders and files that appear complete or not at all
tensor_file    safetensors files written by many ranks at once
untrusted      readers of untrusted files
cache          the cache folder
cards          figures of Ascend cards and their links
peak_flops     --peak_tflops
auto_cast      the casts of paddle.amp.auto_cast
json_rows      JSON that reads as a table
"""
