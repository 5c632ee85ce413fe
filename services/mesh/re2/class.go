package re2

// maxByte is the greatest character: Envoy's expressions match bytes.
const maxByte = 0xff

// class matches one byte of the ranges.
func (p *program) class(ranges []rune) fragment {
	folds := foldsASCII(ranges)
	var f fragment
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		if lo > maxByte || folds && 'A' <= lo && hi <= 'Z' {
			continue // the lower-case range matches both
		}
		f = p.alt(f, p.one(opByteRange, false))
	}
	return f
}

// foldsASCII reports whether a class has the same letters in upper and in lower
// case.
func foldsASCII(ranges []rune) bool {
	var upper, lower uint32
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := max(ranges[i], 'A'); r <= min(ranges[i+1], 'z'); r++ {
			switch {
			case r <= 'Z':
				upper |= 1 << (r - 'A')
			case r >= 'a':
				lower |= 1 << (r - 'a')
			}
		}
	}
	return upper == lower
}
