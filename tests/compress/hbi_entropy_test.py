# SPDX-License-Identifier: Apache-2.0
"""The entropy-coded fields of docs/format.md ("Coded fields"), in exact integers: an executable definition.

As a program it compares hbi_entropy.txt, whose values hbi_entropy_test.cc asks of the library, with what it computes;
with --write it writes that file. A test of its own decodes what it has encoded.
"""

import os
import sys
import zlib
from functools import lru_cache
from itertools import zip_longest

SUPERBLOCK, RUN = 256, 8
PACKED = 15  # in the place of a shape: the run's fields are as they are
MOST = 11  # bits of a code

# 2^20 times the probability that |x| < i / 4 standard deviations; x is normal or Laplacian with equal probability.
HALF = [
    0, 259640, 466541, 629417, 754751, 848291, 915675, 962440, 993732, 1013998, 1026785, 1034722, 1039627, 1042681,
    1044617, 1045875, 1046711, 1047279, 1047669, 1047941, 1048130, 1048263, 1048356, 1048422, 1048468, 1048500,
    1048523, 1048539, 1048550, 1048558, 1048563, 1048567, 1048570, 1048572, 1048573, 1048574, 1048574, 1048575,
    1048575, 1048575, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576,
]
# 2^20 / s for the standard deviation s = 2^(-(i + 2) / 4) of shape i, in multiples of the block's scale.
SHAPES = [
    1482910, 1763488, 2097152, 2493948, 2965821, 3526975, 4194304, 4987896, 5931642, 7053950, 8388608, 9975792,
    11863283, 14107901, 16777216,
]


def width(levels):
    """Half-bits of a field for one code: W(1, K)."""
    even = 2 * (2 * levels).bit_length()
    base = {5: 5, 7: 11, 9: 22, 11: 45, 13: 90, 15: 181}.get(even - 1, 0)
    return even - 1 if base > 2 * levels else even


def base(half_bits):
    """What the second value of a packed field counts in the field."""
    return {5: 5, 7: 11, 9: 22, 11: 45, 13: 90, 15: 181}[half_bits]


def raw_bits(levels):
    """Low bits of a value that are not coded."""
    return max(0, (2 * levels).bit_length() - 4)


def values_of_letter(levels):
    """Consecutive elements that have one code."""
    return 4 if levels == 1 else 2


def below(levels, shape, edge):
    """2^20 times the probability of magnitudes below edge / (2 K) of the scale; its sign is the edge's."""
    at = abs(edge) * SHAPES[shape] // (8 * levels)
    at = min(at, 48 << 16)
    i, part = at >> 16, at & 65535
    value = HALF[i] + ((HALF[min(i + 1, 48)] - HALF[i]) * part >> 16)
    return value if edge >= 0 else -value


@lru_cache(None)
def weights(levels, shape):
    """Of the values of an element without their raw bits."""
    raw = raw_bits(levels)
    result = []
    for top in range((2 * levels >> raw) + 1):
        first, last = top << raw, min((top + 1 << raw) - 1, 2 * levels)
        result.append(below(levels, shape, 2 * (last - levels) + 1) - below(levels, shape, 2 * (first - levels) - 1) + 16)
    return result


@lru_cache(None)
def letter_weights(levels, shape):
    one = weights(levels, shape)
    two = [low * high for high in one for low in one]
    if values_of_letter(levels) == 2:
        return two
    return [(low >> 21) * (high >> 21) + 1 for high in two for low in two]


@lru_cache(None)
def lengths(levels, shape):
    """Bits of the letters' codes: the optimal ones of at most MOST bits, by package-merge."""
    weight = letter_weights(levels, shape)
    order = sorted(range(len(weight)), key=lambda i: (weight[i], i))
    leaves = [(weight[i], 0) for i in order]
    lists = [leaves]
    for _ in range(MOST - 1):
        last = lists[-1]
        packages = [(last[i][0] + last[i + 1][0], 1) for i in range(0, len(last) - 1, 2)]
        lists.append(sorted(leaves + packages))  # a leaf before a package of equal weight
    bits, take = [0] * len(weight), 2 * len(weight) - 2
    for items in reversed(lists):
        packages = sum(package for _, package in items[:take])
        for i in order[:take - packages]:
            bits[i] += 1
        take = 2 * packages
    return bits


@lru_cache(None)
def codes(levels, shape):
    """Canonical codes, by length and letter; the first bit to be sent is the lowest one."""
    bits, result, code, last = lengths(levels, shape), {}, 0, 0
    for letter in sorted(range(len(bits)), key=lambda i: (bits[i], i)):
        code <<= bits[letter] - last
        last = bits[letter]
        result[letter] = (int(f'{code:0{last}b}'[::-1], 2), last)
        code += 1
    return result


def cost(levels, shape):
    """64 times the expected bits of an element, rounded up, and one for the heads of runs."""
    weight, bits = letter_weights(levels, shape), lengths(levels, shape)
    total = sum(weight) * values_of_letter(levels)
    return -(-64 * sum(w * b for w, b in zip(weight, bits)) // total) + 64 * raw_bits(levels) + 1


def pack(levels, values):
    """The packed fields of a superblock, as an integer whose bit 0 is the first one."""
    half_bits, result = width(levels), 0
    if half_bits % 2 == 0:
        for i, value in enumerate(values):
            result |= value << half_bits // 2 * i
        return result
    for i in range(SUPERBLOCK // 2):
        low = 64 * (i // 32) + i % 32
        result |= values[low] + base(half_bits) * values[low + 32] << half_bits * i
    return result


def unpack(levels, packed):
    half_bits = width(levels)
    if half_bits % 2 == 0:
        bits = half_bits // 2
        return [packed >> bits * i & (1 << bits) - 1 for i in range(SUPERBLOCK)]
    values = [0] * SUPERBLOCK
    for i in range(SUPERBLOCK // 2):
        low = 64 * (i // 32) + i % 32
        values[low + 32], values[low] = divmod(packed >> half_bits * i & (1 << half_bits) - 1, base(half_bits))
    return values


def encode_run(superblocks, shape):
    """superblocks: (K, packed fields) of those that have levels. The run's bytes: raw bits, then codes."""
    raws, code, code_bits = b'', 0, 0
    for levels, packed in superblocks:
        raw, values = raw_bits(levels), unpack(levels, packed)
        low = sum((value & (1 << raw) - 1) << raw * i for i, value in enumerate(values))
        raws += low.to_bytes(SUPERBLOCK // 8 * raw, 'little')
        table, tops, many = codes(levels, shape), (2 * levels >> raw) + 1, values_of_letter(levels)
        for i in range(0, SUPERBLOCK, many):
            bits, length = table[sum((value >> raw) * tops**j for j, value in enumerate(values[i:i + many]))]
            code |= bits << code_bits
            code_bits += length
    return raws + code.to_bytes((code_bits + 7) // 8, 'little')


def packed_run(superblocks):
    return b''.join(packed.to_bytes(16 * width(levels), 'little') for levels, packed in superblocks)


def decode_run(levels_of, shape, data):
    """The packed fields of superblocks with these levels. ValueError if the bytes do not end with the last letter."""
    raw_at, result = 0, []
    begin = sum(SUPERBLOCK // 8 * raw_bits(levels) for levels in levels_of)
    code, at = int.from_bytes(data[begin:], 'little'), 0
    for levels in levels_of:
        raw, many = raw_bits(levels), values_of_letter(levels)
        size, tops = SUPERBLOCK // 8 * raw, (2 * levels >> raw) + 1
        low = int.from_bytes(data[raw_at:raw_at + size], 'little')
        raw_at += size
        letter_of = {(length, bits): letter for letter, (bits, length) in codes(levels, shape).items()}
        values = []
        for _ in range(0, SUPERBLOCK, many):
            length = next(n for n in range(1, MOST + 1) if (n, code >> at & (1 << n) - 1) in letter_of)
            letter = letter_of[length, code >> at & (1 << length) - 1]
            at += length
            values += [letter // tops**j % tops << raw for j in range(many)]
        values = [value + (low >> raw * i & (1 << raw) - 1) for i, value in enumerate(values)]
        result.append((levels, pack(levels, values)))
    if begin + (at + 7) // 8 != len(data) or code >> at:
        raise ValueError(f'{len(data)} bytes where {begin} and {at} bits are coded')
    return result


def encode(superblocks, shapes):
    """superblocks: (K, packed fields), K = 0 where there are none. Heads, then runs; each with its shape or PACKED."""
    heads, body = b'', b''
    for i, shape in zip(range(0, len(superblocks), RUN), shapes):
        run = [(levels, packed) for levels, packed in superblocks[i:i + RUN] if levels]
        data, plain = encode_run(run, shape) if shape != PACKED else b'', packed_run(run)
        if shape == PACKED or len(data) >= len(plain):
            heads, body = heads + (PACKED << 12).to_bytes(2, 'little'), body + plain
        else:
            heads, body = heads + (shape << 12 | len(data)).to_bytes(2, 'little'), body + data
    return heads + body


def decode(levels_of, data):
    """The reverse of encode."""
    result, at = [], 2 * -(-len(levels_of) // RUN)
    for i in range(0, len(levels_of), RUN):
        head = int.from_bytes(data[i // RUN * 2:i // RUN * 2 + 2], 'little')
        levels = levels_of[i:i + RUN]
        if head >> 12 == PACKED:
            for k in levels:
                size = 16 * width(k)
                result.append((k, int.from_bytes(data[at:at + size], 'little')))
                at += size
            continue
        fields = iter(decode_run([k for k in levels if k], head >> 12, data[at:at + (head & 4095)]))
        result += [next(fields) if k else (0, 0) for k in levels]
        at += head & 4095
    if at != len(data):
        raise ValueError(f'{len(data)} bytes where {at} are coded')
    return result


GOLDEN_LEVELS = [
    1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 15, 19, 22, 23, 27, 31, 39, 44, 47, 55, 63, 90, 95, 127, 191, 255, 383, 511, 767,
    1023, 1535, 2047, 3071, 4095,
]


def draws(seed):
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 33


def golden():
    """The lines of the golden file."""
    for levels in GOLDEN_LEVELS:
        costs = [cost(levels, shape) for shape in range(len(SHAPES))]
        checksum = zlib.crc32(bytes(bits for shape in range(len(SHAPES)) for bits in lengths(levels, shape)))
        yield ' '.join(map(str, ['code', levels, checksum, *costs]))
    source = draws(1)
    for _ in range(40):
        superblocks = []
        for _ in range(1 + next(source) % 10):
            levels = GOLDEN_LEVELS[next(source) % len(GOLDEN_LEVELS)] if next(source) % 2 else 0
            few = 1 + next(source) % 4  # the value is the mean of so many: the more, the nearer to zero
            values = [sum(next(source) % (2 * levels + 1) for _ in range(few)) // few for _ in range(SUPERBLOCK)]
            superblocks.append((levels, pack(levels, values) if levels else 0))
        shapes = [next(source) % 16 for _ in range(0, len(superblocks), RUN)]
        data = encode(superblocks, shapes)
        assert decode([levels for levels, _ in superblocks], data) == superblocks
        yield ' '.join(['payload', ','.join(str(levels) for levels, _ in superblocks),
                        str(zlib.crc32(packed_run(superblocks))), data.hex()])


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'hbi_entropy.txt')
    lines = [line + '\n' for line in golden()]
    if sys.argv[1:] == ['--write']:
        with open(path, 'w', encoding='ascii') as file:
            file.writelines(lines)
        return
    with open(path, encoding='ascii') as file:
        differing = [i + 1 for i, (a, b) in enumerate(zip_longest(file, lines)) if a != b]
    if differing:
        sys.exit(f'{path}: line {differing[0]} is not what the definition gives ({len(differing)} lines differ)')


if __name__ == '__main__':
    main()
