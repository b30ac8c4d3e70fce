"""Vision towers of vision-language models: what is computed once per batch, before and after their layers.

attention       attention of all images or windows of a batch in one call
grids           the sizes of a batch's images, read from the device once
image_tokens    positions of image tokens, and the features that replace them
paddleocr_vl    PaddleOCR-VL's vision tower, projector and image tokens
qwen_vl         Qwen2.5-VL's and Qwen3-VL's vision towers and image tokens
"""
