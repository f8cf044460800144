package text

import (
	"strings"
	"unicode/utf8"
)

// ellipsis stands for what was cut off.
const ellipsis = "..."

// Cut returns s as valid UTF-8 of at most limit bytes. Each run of invalid bytes becomes U+FFFD. A longer text is cut at the
// boundary of a rune and ends in "..."; with a limit below three it is empty. What Cut has shortened shares no memory with s.
func Cut(s string, limit int) string {
	if len(s) <= limit && utf8.ValidString(s) {
		return s
	}
	// No more is looked at than can remain: a run of invalid bytes may shrink to one rune, so that is not all of it.
	whole := len(s) <= limit
	if !whole {
		s = s[:max(0, limit)]
	}
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if whole && len(s) <= limit {
		return s
	}
	end := limit - len(ellipsis)
	if end < 0 {
		return ""
	}
	end = min(end, len(s))
	for end > 0 && end < len(s) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + ellipsis
}
