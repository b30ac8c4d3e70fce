"""What a card with the public plugin would run: strict mode refuses kernels that it lacks."""

PROGRAM = """
    import paddle, paddle_fused
    from paddle_fused import use_backend, dispatch_log

    paddle.set_device("npu:0")
    H = 40

    def run(name, *arguments):
        tensors = [a for a in arguments if isinstance(a, paddle.Tensor)]
        for tensor in tensors:
            tensor.stop_gradient = False
        results = getattr(paddle_fused, name)(*arguments)
        results = results if isinstance(results, tuple) else (results,)
        outputs = [r for r in results if r.dtype != paddle.bool]
        sum(output.sum() for output in outputs).backward()
        for tensor in tensors:
            assert tensor.grad.shape == tensor.shape
            assert tensor.grad.dtype == tensor.dtype
            tensor.clear_gradient()

    for dtype in ("float32", "bfloat16", "float16"):
        x = paddle.randn([2, 3, H]).astype(dtype)
        residual, weight, bias, layerscale = (paddle.ones(s, dtype) for s in ([2, 3, H], [H], [H], [H]))
        rowscale = paddle.ones([2, 3], dtype)
        float32 = paddle.ones([H])
        with use_backend("ascend", strict=True):
            run("rms_norm", x, weight, 1e-6)
            run("add_rms_norm", x, residual, weight, 1e-6)
            for name in ("dropout_add_layer_norm", "dropout_add_rms_norm"):
                run(name, x, None, weight, None, 0.0, 1e-5)
                run(name, x, residual, weight, bias, 0.0, 1e-5, None, None, True)
                run(name, x, residual, weight, bias, 0.3, 1e-5, rowscale, layerscale, True, False, True)
                run(name, x, residual, weight, bias, 1.0, 1e-5, None, None, True, True, True)
                run(name, x, residual, float32, None, 0.3, 1e-5, None, None, True)
    print(sorted({ran.backend for ran in dispatch_log()}))
"""


def test_the_card_has_every_kernel(run_program):
    result = run_program(PROGRAM, VIRTUAL_NPU_STRICT="1")
    assert result.returncode == 0, result.stderr[-3000:]
    assert "['ascend']" in result.stdout
