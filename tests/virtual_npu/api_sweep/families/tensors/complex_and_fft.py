"""Complex numbers, Fourier transforms and signals."""

from api_sweep.case import case, cases_of, strided, to_static, vary
from api_sweep.inputs import complexes, exactly, normal

COMPLEX = [
    case("complex", normal(3, 5), normal(3, 5)),
    case("real", complexes(3, 5)),
    case("imag", complexes(3, 5)),
    case("conj", complexes(3, 5)),
    case("angle", complexes(3, 5)),
    case("abs", complexes(3, 5)).named("complex"),
    case("as_complex", normal(3, 5, 2)),
    case("as_real", complexes(3, 5)),
    case("view_as_complex", normal(3, 5, 2)),
    case("view_as_real", complexes(3, 5)),
    case("matmul", complexes(3, 5), complexes(5, 4)).named("complex"),
    case("multiply", complexes(3, 5), complexes(3, 5)).named("complex"),
    case("sgn", complexes(3, 5)).named("complex"),
    case("sum", complexes(3, 5)).named("complex"),
]
TRANSFORMS = [
    *cases_of("fft ifft hfft irfft", complexes(3, 6), within="fft"),
    *cases_of("rfft ihfft", normal(3, 6), within="fft"),
    *cases_of("fft2 ifft2 fftn ifftn hfft2 hfftn irfft2 irfftn", complexes(2, 4, 6), within="fft"),
    *cases_of("rfft2 rfftn ihfft2 ihfftn", normal(2, 4, 6), within="fft"),
    case("fft.fftshift", normal(3, 6)),
    case("fft.ifftshift", normal(3, 6)),
    case("fft.fft", complexes(3, 6), n=5, norm="ortho").named("ortho, cut"),
]
PLAIN = [
    case("fft.fftfreq", 7, 0.5).forward_only(),
    case("fft.rfftfreq", 7, 0.5).forward_only(),
    case("audio.functional.get_window", "hann", 16).forward_only(),
    case("audio.functional.create_dct", 4, 8).forward_only(),
    case("audio.functional.compute_fbank_matrix", 8000, 32, 6).forward_only(),
    case("audio.functional.power_to_db", exactly([0.5, 2.0], "float32")).forward_only(),
    case("audio.functional.hz_to_mel", exactly([500.0, 2000.0], "float32")).forward_only(),
    case("audio.functional.mel_to_hz", exactly([5.0, 20.0], "float32")).forward_only(),
    case("audio.functional.mel_frequencies", 6).forward_only(),
    case("audio.functional.fft_frequencies", 8000, 32).forward_only(),
]
SIGNALS = [case("signal.stft", normal(2, 32), n_fft=8), case("signal.istft", complexes(2, 5, 9), n_fft=8)]

NO_VIEW = ["paddle.as_complex[strided]", "paddle.view_as_complex[strided]"]  # needs neighbouring pairs

CASES = [
    *vary(COMPLEX, strided, to_static, skip=NO_VIEW),
    *vary(TRANSFORMS, strided),
    *vary(SIGNALS, strided),
    *PLAIN,
]
