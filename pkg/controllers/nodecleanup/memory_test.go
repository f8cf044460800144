package nodecleanup

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// What each look finds decides how old the finding is and when the next look is due.
func TestHistory(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		// looks is one letter a minute: w or W for one of two remedies, + for well, x for a failed look.
		looks string
		age   time.Duration // that the last look, one more w, returns
	}{
		"the first look":                        {"", 0},
		"the same finding grows old":            {"www", 3 * time.Minute},
		"another finding begins anew":           {"wwW", 0},
		"and grows old from there":              {"WWww", 2 * time.Minute},
		"well in between begins anew":           {"ww+", 0},
		"one failed look says nothing":          {"wxw", 3 * time.Minute},
		"nor do three in a row":                 {"wxxx", 4 * time.Minute},
		"four in a row begin anew":              {"wxxxx", 0},
		"each look that succeeds counts anew":   {"wxxxwxxx", 8 * time.Minute},
		"failures alone are no finding":         {"xx", 0},
		"after a finding that was forgotten":    {"wxxxxxxw", time.Minute},
		"failures after it was well are no age": {"w+xx", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, now := &history{}, start
			one, other := gone, driverless
			for _, look := range tc.looks {
				switch look {
				case 'w':
					h.wrong(one, now)
				case 'W':
					h.wrong(other, now)
				case '+':
					h.well(now, time.Minute)
				case 'x':
					h.failed()
				}
				now = now.Add(time.Minute)
			}
			if got := h.wrong(one, now); got != tc.age {
				t.Errorf("age %s, want %s", got, tc.age)
			}
			if !h.due(now) {
				t.Error("not looked at in the next round")
			}
		})
	}
}

// The pause before the next look at what is well grows to ten rounds, and ends when something is wrong.
func TestPauses(t *testing.T) {
	t.Parallel()
	h, now := &history{}, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var pauses []int
	for range 6 {
		h.well(now, time.Minute)
		pauses = append(pauses, int(h.next.Sub(now)/time.Minute))
		if h.due(h.next.Add(-time.Second)) || !h.due(h.next) {
			t.Errorf("due before %s", h.next)
		}
		now = h.next
	}
	if diff := cmp.Diff([]int{2, 4, 8, 10, 10, 10}, pauses); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	h.wrong(gone, now)
	if !h.due(now) {
		t.Error("what is wrong waits for its next look")
	}
	h.well(now, time.Minute)
	if got := h.next.Sub(now); got != 2*time.Minute {
		t.Errorf("pause %s after something was wrong", got)
	}
}

// What a round does not see is forgotten.
func TestHistories(t *testing.T) {
	t.Parallel()
	all := histories{}
	for i, tc := range []struct{ see, known string }{
		{"a b", ""},
		{"a b", "a b"},
		{"b", "b"},
		{"a b", "b"},
		{"", ""},
		{"a b", ""},
	} {
		var known []string
		for name := range strings.FieldsSeq(tc.see) {
			if all.of(suspect{uid: types.UID(name)}) != nil {
				known = append(known, name)
			}
		}
		all.end()
		if got := strings.Join(known, " "); got != tc.known {
			t.Errorf("round %d: %q were known, want %q", i, got, tc.known)
		}
	}
}
