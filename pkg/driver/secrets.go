package driver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

const (
	stripped = "***stripped***"
	// minSecret is the length below which a value is taken for a word and not for a secret: replacing each
	// "1" or "no" would only make an error unreadable.
	minSecret = 4
	// minPart is the same for a part of a secret: a line of it, a string in its JSON, and its base64.
	minPart = 8
	// maxDecoded is how many escapings on top of each other are seen through: the driver quotes a text that quotes
	// the secret, and a log of the answer escapes that once more.
	maxDecoded = 3
)

// secrets are byte sequences that no text may show. Nil hides nothing.
type secrets [][]byte

// secretsOf returns what must not be seen of the secrets in req: each value, the lines of a value that has several, the
// strings of a value that is JSON, and all of these in base64.
func secretsOf(req any) secrets {
	holder, ok := req.(interface{ GetSecrets() map[string]string })
	if !ok {
		return nil
	}
	var all secrets
	for _, value := range holder.GetSecrets() {
		// Drivers trim the line end that files and shells leave behind.
		trimmed := strings.TrimSpace(value)
		if len(trimmed) < minSecret {
			continue
		}
		all = append(all, []byte(trimmed))
		for _, part := range append(partsOf(trimmed), trimmed) {
			if len(part) >= minPart {
				all = append(append(all, []byte(part)), base64Of(part)...)
			}
		}
	}
	return all
}

// partsOf returns what a driver may show of a secret by itself: its lines, or if it is JSON its strings with their lines.
func partsOf(secret string) []string {
	var document any
	if json.Unmarshal([]byte(secret), &document) == nil {
		return stringsIn(document)
	}
	return linesOf(secret)
}

func linesOf(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// stringsIn returns the strings of a decoded JSON document, and their lines.
func stringsIn(document any) []string {
	var all []string
	switch value := document.(type) {
	case string:
		all = append(linesOf(value), strings.TrimSpace(value))
	case []any:
		for _, item := range value {
			all = append(all, stringsIn(item)...)
		}
	case map[string]any:
		for _, item := range value {
			all = append(all, stringsIn(item)...)
		}
	}
	return all
}

// base64Of returns what the base64 of any text that contains part must contain: one form for each place of its first
// byte in a group of three, in both alphabets.
func base64Of(part string) [][]byte {
	var all [][]byte
	for offset := range 3 {
		bits := 8 * (offset + len(part))
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := encoding.EncodeToString(append(make([]byte, offset), part...))
			all = append(all, []byte(text[(8*offset+5)/6:bits/6])) // without the characters that its neighbours decide, too
		}
	}
	return all
}

// span is a part of a text, from its first byte to the one after its last.
type span struct{ from, to int }

// redact returns text with all that it shows of the secrets replaced, also where it is escaped: quoted by Go or C, in
// JSON, or in a URL, up to maxDecoded times.
func (s secrets) redact(text string) string {
	var found []span
	plainly(text).each(maxDecoded, func(form decoded) {
		for _, secret := range s {
			found = append(found, form.find(secret)...)
		}
	})
	if len(found) == 0 {
		return text
	}
	slices.SortFunc(found, func(a, b span) int { return a.from - b.from })
	var out strings.Builder
	end := 0
	for i, f := range found {
		if i == 0 || f.from > end { // what overlaps or touches is one
			out.WriteString(text[end:f.from] + stripped)
		}
		end = max(end, f.to)
	}
	out.WriteString(text[end:])
	return out.String()
}

// decoded is a text after escapes in it were decoded; from says for each of its bytes, and for its end, where in the
// original text it comes from.
type decoded struct {
	text []byte
	from []int32
}

// find returns the places of secret, as parts of the original text.
func (d decoded) find(secret []byte) []span {
	var found []span
	for at := 0; ; at++ {
		next := bytes.Index(d.text[at:], secret)
		if next < 0 {
			return found
		}
		at += next
		found = append(found, span{int(d.from[at]), int(d.from[at+len(secret)])})
	}
}

// plainly returns a text that is not decoded.
func plainly(text string) decoded {
	plain := decoded{text: []byte(text), from: make([]int32, len(text)+1)}
	for i := range plain.from {
		plain.from[i] = int32(i)
	}
	return plain
}

// each visits the text, and the text decoded up to depth times, in each order of the ways of escaping that are in it.
// Long texts take memory for depth forms at the same time and not for all.
func (d decoded) each(depth int, visit func(decoded)) {
	visit(d)
	if depth == 0 {
		return
	}
	for _, way := range []struct {
		mark   byte // without it in the text there is nothing to decode
		decode unescape
	}{{'\\', backslash}, {'%', percent}, {'+', query}} {
		if bytes.IndexByte(d.text, way.mark) < 0 {
			continue
		}
		if further := d.decode(way.decode); !bytes.Equal(further.text, d.text) {
			further.each(depth-1, visit)
		}
	}
}

// decode decodes all escapes of one way.
func (d decoded) decode(way unescape) decoded {
	next := decoded{text: make([]byte, 0, len(d.text)), from: make([]int32, 0, len(d.from))}
	for at := 0; at < len(d.text); {
		value, length := way(d.text[at:])
		if length == 0 {
			value, length = d.text[at:at+1], 1
		}
		for range value {
			next.from = append(next.from, d.from[at])
		}
		next.text = append(next.text, value...)
		at += length
	}
	next.from = append(next.from, d.from[len(d.text)])
	return next
}
