"""Vision towers of vision-language models: what is computed once per batch, before and after their layers.

grids           the sizes of a batch's images, read from the device once
paddleocr_vl    PaddleOCR-VL's vision tower, projector and image tokens
"""
