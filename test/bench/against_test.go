package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRatiosAreThoseOfTheRounds(t *testing.T) {
	t.Parallel()
	round := func(ours, other float64) pair {
		return pair{ours: result{Over: overClaims, Size: 100, CreateCPU: ours, PeakBytes: 50}, other: result{CreateCPU: other, PeakBytes: 100}}
	}
	for name, tc := range map[string]struct {
		rounds      []pair
		create      ratio
		wantPrinted string
	}{
		"one":             {[]pair{round(1, 2)}, ratio{"CPU of a create", 0.5, 0.5, 0.5}, "CPU of a create    0.50  0.50  0.50"},
		"three":           {[]pair{round(3, 2), round(1, 2), round(2, 2)}, ratio{"CPU of a create", 1, 0.5, 1.5}, "CPU of a create    1.00  0.50  1.50"},
		"two":             {[]pair{round(3, 2), round(1, 2)}, ratio{"CPU of a create", 1, 0.5, 1.5}, "rounds: 2"},
		"nothing to tell": {[]pair{round(3, 0), round(1, 2)}, ratio{"CPU of a create", 0.5, 0.5, 0.5}, "Ratios to bin/other with 100 claims"},
		"never":           {[]pair{round(3, 0)}, ratio{Of: "CPU of a create"}, "peak memory    0.50"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := compare(tc.rounds)
			if c.Over != overClaims || c.Size != 100 || c.Rounds != len(tc.rounds) {
				t.Errorf("%d rounds over %d %s, want %d over 100 claims", c.Rounds, c.Size, c.Over, len(tc.rounds))
			}
			if diff := cmp.Diff(tc.create, c.Ratios[1]); diff != "" {
				t.Errorf("ratio (-want +got):\n%s", diff)
			}
			var out bytes.Buffer
			printComparisons(&out, "bin/other", []comparison{c})
			if !strings.Contains(out.String(), tc.wantPrinted) {
				t.Errorf("printed:\n%s\nwant in it: %s", out.String(), tc.wantPrinted)
			}
		})
	}
}
