package volume

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseKeys(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		patterns []string
		want     Keys
		wantErrs []string // a phrase of each line
	}{
		"none":                           {},
		"sorted, each once":              {patterns: []string{"b", "a/*", "b"}, want: Keys{"a/*", "b"}},
		"keys without and with a prefix": {patterns: []string{"team", "example.com/team", "Example.com/Team_1.x-y"}, want: Keys{"Example.com/Team_1.x-y", "example.com/team", "team"}},
		"nothing":                        {patterns: []string{""}, wantErrs: []string{`"" is not a key`}},
		"all keys":                       {patterns: []string{"*"}, wantErrs: []string{`"*": a * stands for all keys of one prefix`}},
		"all keys of no prefix":          {patterns: []string{"/*"}, wantErrs: []string{`"/*" is not a key, and not a prefix`}},
		"a part of a name":               {patterns: []string{"a*b"}, wantErrs: []string{`"a*b": a *`}},
		"the start of a name":            {patterns: []string{"example.com/te*"}, wantErrs: []string{`"example.com/te*": a *`}},
		"a part of a prefix":             {patterns: []string{"*.example.com/*"}, wantErrs: []string{`"*.example.com/*": a *`}},
		"two stars":                      {patterns: []string{"example.com/**"}, wantErrs: []string{`a *`}},
		"a space before the key":         {patterns: []string{" a"}, wantErrs: []string{`" a" is not a key`}},
		"a space in the prefix":          {patterns: []string{"example .com/*"}, wantErrs: []string{`"example .com/*" is not a key`}},
		"two slashes":                    {patterns: []string{"a/b/*"}, wantErrs: []string{`"a/b/*" is not a key`}},
		"a key that is too long":         {patterns: []string{strings.Repeat("k", 64)}, wantErrs: []string{"63"}},
		"each mistake":                   {patterns: []string{"*", "ok", "a b"}, wantErrs: []string{`"*"`, `"a b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseKeys(tc.patterns)
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(tc.wantErrs) {
				t.Fatalf("errors %q, want %d", lines, len(tc.wantErrs))
			}
			for i, want := range tc.wantErrs {
				if !strings.Contains(lines[i], want) {
					t.Errorf("error %q does not mention %q", lines[i], want)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeysHas(t *testing.T) {
	t.Parallel()
	keys, err := ParseKeys([]string{"team", "example.com/*", "other.example.com/exact"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{
		"team": true, "teams": false, "tea": false, "x/team": false,
		"example.com/a": true, "example.com/": true, "example.com": false, "example.commerce/a": false, "sub.example.com/a": false, "Example.com/a": false,
		"other.example.com/exact": true, "other.example.com/exactly": false,
		"": false, "*": false,
	} {
		if got := keys.Has(key); got != want {
			t.Errorf("Has(%q) = %t, want %t", key, got, want)
		}
		if Keys(nil).Has(key) {
			t.Errorf("no patterns have %q", key)
		}
	}
}
