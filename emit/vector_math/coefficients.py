"""Polynomial coefficients, lowest power first, per float width.

Written by `tools/derive_vector_math.py`, which says how they are found. `error` is the
largest relative error of the function named, before rounding errors.
"""

from collections.abc import Mapping

Polynomial = tuple[float, ...]

# exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/2
EXPM1: Mapping[int, Polynomial] = {
    # error 2**-26.2
    32: (
        float.fromhex("0x1.fffffe0000000p-2"),
        float.fromhex("0x1.5554b00000000p-3"),
        float.fromhex("0x1.5556740000000p-5"),
        float.fromhex("0x1.1227f20000000p-7"),
        float.fromhex("0x1.6bebce0000000p-10"),
    ),
    # error 2**-55.6
    64: (
        float.fromhex("0x1.0000000000005p-1"),
        float.fromhex("0x1.5555555555539p-3"),
        float.fromhex("0x1.5555555552257p-5"),
        float.fromhex("0x1.1111111119074p-7"),
        float.fromhex("0x1.6c16c17ef6365p-10"),
        float.fromhex("0x1.a01a0174ea5afp-13"),
        float.fromhex("0x1.a019a71a9d149p-16"),
        float.fromhex("0x1.71de88223428fp-19"),
        float.fromhex("0x1.28a23866c2243p-22"),
        float.fromhex("0x1.ae6bf4d87e44ep-26"),
    ),
}

# exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/32
EXPM1_NEAR_ZERO: Mapping[int, Polynomial] = {
    # error 2**-29.2
    32: (
        float.fromhex("0x1.0002200000000p-1"),
        float.fromhex("0x1.55559a0000000p-3"),
    ),
}

# exp(r) = 1 + r + r**2 * P(r), |r| <= log(2)/16
EXPM1_OF_SIXTEENTH: Mapping[int, Polynomial] = {
    # error 2**-25.2
    32: (
        float.fromhex("0x1.0008780000000p-1"),
        float.fromhex("0x1.5556580000000p-3"),
    ),
}

# log(1 + f) = f - f**2/2 + f**3 * P(f), -1/4 <= f <= 1/2
LOG1P: Mapping[int, Polynomial] = {
    # error 2**-27.6
    32: (
        float.fromhex("0x1.5555a20000000p-2"),
        float.fromhex("-0x1.0000820000000p-2"),
        float.fromhex("0x1.996ae60000000p-3"),
        float.fromhex("-0x1.54dd200000000p-3"),
        float.fromhex("0x1.284c480000000p-3"),
        float.fromhex("-0x1.0e11580000000p-3"),
        float.fromhex("0x1.b17a980000000p-4"),
        float.fromhex("-0x1.7a38d60000000p-5"),
    ),
}

# 2**r = 1 + r * P(r), |r| <= 1/2
EXP2M1: Mapping[int, Polynomial] = {
    # error 2**-27.0
    32: (
        float.fromhex("0x1.62e4300000000p-1"),
        float.fromhex("0x1.ebfbe00000000p-3"),
        float.fromhex("0x1.c6af6a0000000p-5"),
        float.fromhex("0x1.3b29e20000000p-7"),
        float.fromhex("0x1.5f0a280000000p-10"),
        float.fromhex("0x1.446dea0000000p-13"),
    ),
}

# log2(1 + f) = f * P(f), -1/4 <= f <= 1/2; enough for pow of f32
LOG2_1P: Mapping[int, Polynomial] = {
    # error 2**-38.5
    64: (
        float.fromhex("0x1.71547652b711ap+0"),
        float.fromhex("-0x1.71547653f5762p-1"),
        float.fromhex("0x1.ec709dd2bee9dp-2"),
        float.fromhex("-0x1.715473d8bc4f0p-2"),
        float.fromhex("0x1.2776ba1d873d5p-2"),
        float.fromhex("-0x1.ec71f31b6b92bp-3"),
        float.fromhex("0x1.a61daf1e491f3p-3"),
        float.fromhex("-0x1.71331f7bc6587p-3"),
        float.fromhex("0x1.477e26d465a31p-3"),
        float.fromhex("-0x1.282ec881623d4p-3"),
        float.fromhex("0x1.17995e5b6e543p-3"),
        float.fromhex("-0x1.050c6c76f4349p-3"),
        float.fromhex("0x1.79086c5644687p-4"),
        float.fromhex("-0x1.101cdb9f85aaap-5"),
    ),
}

# 2 * atanh(s) = 2 * s + s**3 * P(s**2), |s| <= 1/5
ATANH: Mapping[int, Polynomial] = {
    # error 2**-55.9
    64: (
        float.fromhex("0x1.555555555577dp-1"),
        float.fromhex("0x1.99999998eedecp-2"),
        float.fromhex("0x1.249249b3826e0p-2"),
        float.fromhex("0x1.c71c007d1f8afp-3"),
        float.fromhex("0x1.7475089382aafp-3"),
        float.fromhex("0x1.384fd3b687a88p-3"),
        float.fromhex("0x1.3ad5f27cf5801p-3"),
    ),
}

# 2 * atanh(s) = 2 * s + 2/3 * s**3 + s**5 * P(s**2), |s| <= 1/5
ATANH_TAIL: Mapping[int, Polynomial] = {
    # error 2**-69.0
    64: (
        float.fromhex("0x1.9999999999967p-2"),
        float.fromhex("0x1.2492492498f0ap-2"),
        float.fromhex("0x1.c71c71bc4fdd4p-3"),
        float.fromhex("0x1.745d1bd0fe327p-3"),
        float.fromhex("0x1.3b12964cab58fp-3"),
        float.fromhex("0x1.113a53c052862p-3"),
        float.fromhex("0x1.dac975cd9f239p-4"),
        float.fromhex("0x1.0192e90a2d966p-3"),
    ),
}

# sin(r) = r + r**3 * P(r**2), |r| <= pi/4
SIN: Mapping[int, Polynomial] = {
    # error 2**-27.9
    32: (
        float.fromhex("-0x1.5555440000000p-3"),
        float.fromhex("0x1.1106d40000000p-7"),
        float.fromhex("-0x1.9920c40000000p-13"),
    ),
    # error 2**-57.7
    64: (
        float.fromhex("-0x1.5555555555547p-3"),
        float.fromhex("0x1.111111110f52ap-7"),
        float.fromhex("-0x1.a01a019ba6820p-13"),
        float.fromhex("0x1.71de351a0988cp-19"),
        float.fromhex("-0x1.ae5e1c4aaf56ep-26"),
        float.fromhex("0x1.5d7d68a46de96p-33"),
    ),
}

# cos(r) = 1 - r**2/2 + r**4 * P(r**2), |r| <= pi/4
COS: Mapping[int, Polynomial] = {
    # error 2**-32.9
    32: (
        float.fromhex("0x1.55554a0000000p-5"),
        float.fromhex("-0x1.6c0bc40000000p-10"),
        float.fromhex("0x1.99cb6a0000000p-16"),
    ),
    # error 2**-63.7
    64: (
        float.fromhex("0x1.5555555555549p-5"),
        float.fromhex("-0x1.6c16c16c14c8ap-10"),
        float.fromhex("0x1.a01a019c37477p-16"),
        float.fromhex("-0x1.27e4f7b23abd8p-22"),
        float.fromhex("0x1.1ee9b0b7a482ap-29"),
        float.fromhex("-0x1.8f9025a9cc9c5p-37"),
    ),
}

# asin(s) = s + s**3 * P(s**2), |s| <= 1/2
ASIN: Mapping[int, Polynomial] = {
    # error 2**-27.6
    32: (
        float.fromhex("0x1.5555c80000000p-3"),
        float.fromhex("0x1.3301cc0000000p-4"),
        float.fromhex("0x1.7480e00000000p-5"),
        float.fromhex("0x1.8c0cac0000000p-6"),
        float.fromhex("0x1.5986340000000p-5"),
    ),
    # error 2**-55.9
    64: (
        float.fromhex("0x1.555555555538ep-3"),
        float.fromhex("0x1.333333336ec25p-4"),
        float.fromhex("0x1.6db6db424ccb3p-5"),
        float.fromhex("0x1.f1c72c4885aa3p-6"),
        float.fromhex("0x1.6e89f2b981a40p-6"),
        float.fromhex("0x1.1c6bf9991a6f9p-6"),
        float.fromhex("0x1.c6fbd7b84a698p-7"),
        float.fromhex("0x1.8ecff3eb22e93p-7"),
        float.fromhex("0x1.ab5bf978905c9p-8"),
        float.fromhex("0x1.4045b1b1fdb01p-6"),
        float.fromhex("-0x1.0a556b713c0d4p-6"),
        float.fromhex("0x1.059b1530ce14ep-5"),
    ),
}

# atan(s) = s + s**3 * P(s**2), |s| <= tan(pi/8)
ATAN: Mapping[int, Polynomial] = {
    # error 2**-25.5
    32: (
        float.fromhex("-0x1.5554540000000p-2"),
        float.fromhex("0x1.9924ae0000000p-3"),
        float.fromhex("-0x1.1c36580000000p-3"),
        float.fromhex("0x1.49dcc80000000p-4"),
    ),
    # error 2**-59.4
    64: (
        float.fromhex("-0x1.555555555553dp-2"),
        float.fromhex("0x1.99999999957b0p-3"),
        float.fromhex("-0x1.24924922a98acp-3"),
        float.fromhex("0x1.c71c70e4bf070p-4"),
        float.fromhex("-0x1.745cf8ba40760p-4"),
        float.fromhex("0x1.3b1116ec64f6dp-4"),
        float.fromhex("-0x1.10eba112e98a3p-4"),
        float.fromhex("0x1.df0e0cf4266a2p-5"),
        float.fromhex("-0x1.9ccd6aa2c9cf7p-5"),
        float.fromhex("0x1.37c8b7494dc4ep-5"),
        float.fromhex("-0x1.254f22204bbf2p-6"),
    ),
}

# log(erfc(t)) = -2/sqrt(pi) * t + t**2 * P(t), 0 <= t <= 3.93
LOG_ERFC: Mapping[int, Polynomial] = {
    # error 2**-27.8
    32: (
        float.fromhex("-0x1.45f2fe0000000p-1"),
        float.fromhex("-0x1.a4f94a0000000p-4"),
        float.fromhex("0x1.39bf480000000p-6"),
        float.fromhex("0x1.5cca920000000p-13"),
        float.fromhex("-0x1.b675ec0000000p-10"),
        float.fromhex("0x1.4d4df60000000p-11"),
        float.fromhex("-0x1.f0ab920000000p-14"),
        float.fromhex("0x1.3960500000000p-17"),
    ),
}

# erf(t) = t * P(t**2), |t| <= 1
ERF: Mapping[int, Polynomial] = {
    # error 2**-56.9
    64: (
        float.fromhex("0x1.20dd750429b6dp+0"),
        float.fromhex("-0x1.812746b0379bdp-2"),
        float.fromhex("0x1.ce2f21a040d16p-4"),
        float.fromhex("-0x1.b82ce311fa91bp-6"),
        float.fromhex("0x1.565bccf92ae68p-8"),
        float.fromhex("-0x1.c02db03dcd968p-11"),
        float.fromhex("0x1.f9a2baa848121p-14"),
        float.fromhex("-0x1.f4ca4d66f9805p-17"),
        float.fromhex("0x1.b97fd3a01d7e9p-20"),
        float.fromhex("-0x1.5c07260fff148p-23"),
        float.fromhex("0x1.d71b0bf08289bp-27"),
        float.fromhex("-0x1.abae46c6f9dfep-31"),
    ),
}

# log(erfc(t)) = t * P(t - 3), 1 <= t <= 5.95
LOG_ERFC_TAIL: Mapping[int, Polynomial] = {
    # error 2**-55.1
    64: (
        float.fromhex("-0x1.c966f3b9c254cp+1"),
        float.fromhex("-0x1.d1f8993338ab2p-1"),
        float.fromhex("-0x1.024a6ad2b027bp-6"),
        float.fromhex("0x1.6cf1d6a780de6p-9"),
        float.fromhex("-0x1.f42b58b3f5a3dp-12"),
        float.fromhex("0x1.43648e6c28394p-14"),
        float.fromhex("-0x1.7c80cde0bede8p-17"),
        float.fromhex("0x1.79b69e2421c2dp-20"),
        float.fromhex("-0x1.ed1eb1ca870ddp-24"),
        float.fromhex("-0x1.1e1a1b5f82b57p-27"),
        float.fromhex("0x1.0252d191ccf39p-27"),
        float.fromhex("-0x1.6430a29686073p-31"),
        float.fromhex("0x1.c030dbe57f38ap-31"),
        float.fromhex("-0x1.31efbadce8bdcp-32"),
        float.fromhex("-0x1.98088bf13ebf5p-33"),
        float.fromhex("-0x1.2717aa31a9f45p-34"),
        float.fromhex("-0x1.2d67905fe8699p-37"),
    ),
}

# By the number n of points: erf(k*STEP[n] + t) = sum(ERF_STEPS[n][i][k] * t**i), for
# |t| <= STEP[n]/2
ERF_STEP: Mapping[int, float] = {16: 0.25390625, 8: 0.52734375}
ERF_STEPS: Mapping[int, tuple[Polynomial, ...]] = {
    # error 2**-25.6
    16: (
        (
            float.fromhex("0x0.0p+0"),
            float.fromhex("0x1.1f31b20000000p-2"),
            float.fromhex("0x1.0dff4e0000000p-1"),
            float.fromhex("0x1.6fef760000000p-1"),
            float.fromhex("0x1.b2bb680000000p-1"),
            float.fromhex("0x1.dad53e0000000p-1"),
            float.fromhex("0x1.f006140000000p-1"),
            float.fromhex("0x1.f9e15c0000000p-1"),
            float.fromhex("0x1.fdea6e0000000p-1"),
            float.fromhex("0x1.ff5eb60000000p-1"),
            float.fromhex("0x1.ffd4ca0000000p-1"),
            float.fromhex("0x1.fff5c00000000p-1"),
            float.fromhex("0x1.fffdda0000000p-1"),
            float.fromhex("0x1.ffff9a0000000p-1"),
            float.fromhex("0x1.fffff00000000p-1"),
            float.fromhex("0x1.fffffe0000000p-1"),
        ),
        (
            float.fromhex("0x1.20dd760000000p+0"),
            float.fromhex("0x1.0ed47c0000000p+0"),
            float.fromhex("0x1.be68740000000p-1"),
            float.fromhex("0x1.4366860000000p-1"),
            float.fromhex("0x1.9be4380000000p-2"),
            float.fromhex("0x1.cd22a60000000p-3"),
            float.fromhex("0x1.c5d0480000000p-4"),
            float.fromhex("0x1.8894ea0000000p-5"),
            float.fromhex("0x1.2a875a0000000p-6"),
            float.fromhex("0x1.8f182a0000000p-8"),
            float.fromhex("0x1.d4fee00000000p-10"),
            float.fromhex("0x1.e477f00000000p-12"),
            float.fromhex("0x1.b7e9900000000p-14"),
            float.fromhex("0x1.5f21dc0000000p-16"),
            float.fromhex("0x1.ecbb0a0000000p-19"),
            float.fromhex("0x1.2fe5000000000p-21"),
        ),
        (
            float.fromhex("0x1.6d339c0000000p-23"),
            float.fromhex("-0x1.130e440000000p-2"),
            float.fromhex("-0x1.c5602e0000000p-2"),
            float.fromhex("-0x1.ecad360000000p-2"),
            float.fromhex("-0x1.a254040000000p-2"),
            float.fromhex("-0x1.24b7540000000p-2"),
            float.fromhex("-0x1.59af140000000p-3"),
            float.fromhex("-0x1.5ce18e0000000p-4"),
            float.fromhex("-0x1.2f316c0000000p-5"),
            float.fromhex("-0x1.c7fb6a0000000p-7"),
            float.fromhex("-0x1.29ad480000000p-8"),
            float.fromhex("-0x1.52382c0000000p-10"),
            float.fromhex("-0x1.4efe3a0000000p-12"),
            float.fromhex("-0x1.219f280000000p-14"),
            float.fromhex("-0x1.b595080000000p-17"),
            float.fromhex("-0x1.2113a40000000p-19"),
        ),
        (
            float.fromhex("-0x1.812a680000000p-2"),
            float.fromhex("-0x1.3a91a80000000p-2"),
            float.fromhex("-0x1.2043a00000000p-3"),
            float.fromhex("0x1.14a26c0000000p-5"),
            float.fromhex("0x1.23e1e40000000p-3"),
            float.fromhex("0x1.55c4080000000p-3"),
            float.fromhex("0x1.1372aa0000000p-3"),
            float.fromhex("0x1.5bf5a40000000p-4"),
            float.fromhex("0x1.68d3780000000p-5"),
            float.fromhex("0x1.3a15d80000000p-6"),
            float.fromhex("0x1.d0d3e60000000p-8"),
            float.fromhex("0x1.26b8720000000p-9"),
            float.fromhex("0x1.41f0720000000p-11"),
            float.fromhex("0x1.3014960000000p-13"),
            float.fromhex("0x1.f2113c0000000p-16"),
            float.fromhex("0x1.626d480000000p-18"),
        ),
        (
            float.fromhex("0x1.04efb20000000p-12"),
            float.fromhex("0x1.053b620000000p-3"),
            float.fromhex("0x1.74fc040000000p-3"),
            float.fromhex("0x1.2cda060000000p-3"),
            float.fromhex("0x1.05ed2e0000000p-4"),
            float.fromhex("-0x1.4b9ca60000000p-7"),
            float.fromhex("-0x1.76ac020000000p-5"),
            float.fromhex("-0x1.804a7a0000000p-5"),
            float.fromhex("-0x1.096e740000000p-5"),
            float.fromhex("-0x1.1c103c0000000p-6"),
            float.fromhex("-0x1.ef14b40000000p-8"),
            float.fromhex("-0x1.67e55c0000000p-9"),
            float.fromhex("-0x1.ba92200000000p-11"),
            float.fromhex("-0x1.d061160000000p-13"),
            float.fromhex("-0x1.a2411a0000000p-15"),
            float.fromhex("-0x1.44bee40000000p-17"),
        ),
        (
            float.fromhex("0x1.c717de0000000p-4"),
            float.fromhex("0x1.47497e0000000p-4"),
            float.fromhex("0x1.7f746a0000000p-8"),
            float.fromhex("-0x1.bccdd80000000p-5"),
            float.fromhex("-0x1.177a3a0000000p-4"),
            float.fromhex("-0x1.6d74c00000000p-5"),
            float.fromhex("-0x1.95e8fe0000000p-7"),
            float.fromhex("0x1.ffb92a0000000p-8"),
            float.fromhex("0x1.aa8bee0000000p-7"),
            float.fromhex("0x1.483ad00000000p-7"),
            float.fromhex("0x1.6865da0000000p-8"),
            float.fromhex("0x1.37041c0000000p-9"),
            float.fromhex("0x1.b6f7fe0000000p-11"),
            float.fromhex("0x1.02a05e0000000p-12"),
            float.fromhex("0x1.019ccc0000000p-14"),
            float.fromhex("0x1.b563b80000000p-17"),
        ),
    ),
    # error 2**-25.5
    8: (
        (
            float.fromhex("0x0.0p+0"),
            float.fromhex("0x1.16a1140000000p-1"),
            float.fromhex("0x1.ba764a0000000p-1"),
            float.fromhex("0x1.f3107e0000000p-1"),
            float.fromhex("0x1.fe8a000000000p-1"),
            float.fromhex("0x1.ffe6ca0000000p-1"),
            float.fromhex("0x1.ffff000000000p-1"),
            float.fromhex("0x1.fffffa0000000p-1"),
        ),
        (
            float.fromhex("0x1.20dd760000000p+0"),
            float.fromhex("0x1.b5792c0000000p-1"),
            float.fromhex("0x1.7be49a0000000p-2"),
            float.fromhex("0x1.7a50420000000p-4"),
            float.fromhex("0x1.b00a940000000p-7"),
            float.fromhex("0x1.1aebd40000000p-10"),
            float.fromhex("0x1.a8fb920000000p-15"),
            float.fromhex("0x1.6e27a20000000p-20"),
        ),
        (
            float.fromhex("-0x1.a1d8b60000000p-21"),
            float.fromhex("-0x1.cd65ba0000000p-2"),
            float.fromhex("-0x1.90ab4e0000000p-2"),
            float.fromhex("-0x1.2b40b80000000p-3"),
            float.fromhex("-0x1.c7ab0c0000000p-6"),
            float.fromhex("-0x1.74fb9c0000000p-9"),
            float.fromhex("-0x1.5023620000000p-13"),
            float.fromhex("-0x1.51d3fe0000000p-18"),
        ),
        (
            float.fromhex("-0x1.811c3e0000000p-2"),
            float.fromhex("-0x1.02f0de0000000p-3"),
            float.fromhex("0x1.3611120000000p-3"),
            float.fromhex("0x1.f93afa0000000p-4"),
            float.fromhex("0x1.1c76560000000p-5"),
            float.fromhex("0x1.300e5a0000000p-8"),
            float.fromhex("0x1.4fbc260000000p-12"),
            float.fromhex("0x1.8cf6600000000p-17"),
        ),
        (
            float.fromhex("-0x1.842c8c0000000p-11"),
            float.fromhex("0x1.77cb140000000p-3"),
            float.fromhex("0x1.9eaf600000000p-5"),
            float.fromhex("-0x1.9011f00000000p-5"),
            float.fromhex("-0x1.c02d940000000p-6"),
            float.fromhex("-0x1.52f3400000000p-8"),
            float.fromhex("-0x1.dbf1ea0000000p-12"),
            float.fromhex("-0x1.533ce20000000p-16"),
        ),
        (
            float.fromhex("0x1.e58d580000000p-4"),
            float.fromhex("0x1.b30cf80000000p-14"),
            float.fromhex("-0x1.0b169e0000000p-4"),
            float.fromhex("-0x1.bced4a0000000p-8"),
            float.fromhex("0x1.9677cc0000000p-7"),
            float.fromhex("0x1.0f8d340000000p-8"),
            float.fromhex("0x1.0a3f480000000p-11"),
            float.fromhex("0x1.eae72e0000000p-16"),
        ),
        (
            float.fromhex("-0x1.4975160000000p-6"),
            float.fromhex("-0x1.8719f60000000p-5"),
            float.fromhex("0x1.2504cc0000000p-7"),
            float.fromhex("0x1.074d060000000p-6"),
            float.fromhex("-0x1.6b45e40000000p-10"),
            float.fromhex("-0x1.1e9db80000000p-9"),
            float.fromhex("-0x1.a37dd80000000p-12"),
            float.fromhex("-0x1.eedf960000000p-16"),
        ),
    ),
}
