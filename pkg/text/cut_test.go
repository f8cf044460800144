package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in    string
		limit int
		want  string
	}{
		"what is short stays":                        {"as it is", 8, "as it is"},
		"what is long ends in an ellipsis":           {"as it was", 8, "as it..."},
		"no rune is cut in two":                      {"aäöü€", 8, "aäö..."},
		"invalid bytes are replaced":                 {"a\xff\xfeb", 8, "a\ufffdb"},
		"what grows by a replacement is cut":         {"\xffa\xffa\xffa", 8, "\ufffda..."},
		"a cut through a rune leaves no broken part": {"aaaa€€€", 9, "aaaa..."},
		"invalid bytes at the cut":                   {"aaaaaa\xff\xff\xff\xff", 9, "aaaaaa..."},
		"nothing fits":                               {"aaaa", 2, ""},
		"a limit below zero":                         {"aaaa", -1, ""},
		"empty":                                      {"", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Cut(tc.in, tc.limit); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// Whatever goes in, what comes out is valid, short enough, and its own cut.
func FuzzCut(f *testing.F) {
	f.Add("as it is", 4)
	f.Add("a\xff\xfeb", 8)
	f.Add(strings.Repeat("€", 5), 7)
	f.Fuzz(func(t *testing.T, in string, limit int) {
		got := Cut(in, limit)
		if !utf8.ValidString(got) || len(got) > max(0, limit) {
			t.Errorf("Cut(%q, %d) = %q", in, limit, got)
		}
		if again := Cut(got, limit); again != got {
			t.Errorf("Cut(%q, %d) = %q", got, limit, again)
		}
		if utf8.ValidString(in) && len(in) <= limit && got != in {
			t.Errorf("Cut(%q, %d) = %q", in, limit, got)
		}
	})
}
