package driver

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// unescape decodes the escape that a text begins with. It returns what stands for it and how long it is; zero when the
// text begins with none.
type unescape func(text []byte) (value []byte, length int)

// simpleEscapes are the letters after a backslash that stand for one byte: in Go, C and JSON.
var simpleEscapes = map[byte]byte{
	'a': '\a', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v', '\\': '\\', '\'': '\'', '"': '"', '/': '/',
}

// backslash decodes the escapes of strings in Go, C and JSON.
func backslash(text []byte) (value []byte, length int) {
	if len(text) < 2 || text[0] != '\\' {
		return nil, 0
	}
	if b, ok := simpleEscapes[text[1]]; ok {
		return []byte{b}, 2
	}
	switch text[1] {
	case 'x':
		if n, ok := number(text, 2, 2, 16); ok {
			return []byte{byte(n)}, 4 //nolint:gosec // it is below 256
		}
	case 'u':
		return unicode(text)
	case 'U':
		if n, ok := number(text, 2, 8, 16); ok {
			return utf8.AppendRune(nil, n), 10
		}
	default:
		if n, ok := number(text, 1, 3, 8); ok && n < 256 {
			return []byte{byte(n)}, 4 //nolint:gosec // it is below 256
		}
	}
	return nil, 0
}

// unicode decodes \uXXXX, and two of them that are the halves of one character.
func unicode(text []byte) (value []byte, length int) {
	n, ok := number(text, 2, 4, 16)
	if !ok {
		return nil, 0
	}
	if utf16.IsSurrogate(n) && len(text) > 8 && text[6] == '\\' && text[7] == 'u' {
		if low, ok := number(text, 8, 4, 16); ok {
			return utf8.AppendRune(nil, utf16.DecodeRune(n, low)), 12
		}
	}
	return utf8.AppendRune(nil, n), 6
}

// percent decodes the escapes of a URL's path.
func percent(text []byte) (value []byte, length int) {
	if n, ok := number(text, 1, 2, 16); ok && text[0] == '%' {
		return []byte{byte(n)}, 3 //nolint:gosec // it is below 256
	}
	return nil, 0
}

// query decodes the escapes of a URL's query.
func query(text []byte) (value []byte, length int) {
	if text[0] == '+' {
		return []byte{' '}, 1
	}
	return percent(text)
}

// number reads so many digits at an offset.
func number(text []byte, offset, digits, base int) (rune, bool) {
	if len(text) < offset+digits {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text[offset:offset+digits]), base, 31)
	return rune(n), err == nil
}
