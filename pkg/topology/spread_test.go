package topology

import (
	"strconv"
	"testing"
)

// The contract's table of claim names.
func TestSpread(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wantHash, wantOrdinal uint32
		want3, want4          int
	}{
		"data-web-0":    {1181096325, 0, 0, 1},
		"data-web-1":    {1181096325, 1, 1, 2},
		"data-web-2":    {1181096325, 2, 2, 3},
		"logs-web-0":    {1181096325, 0, 0, 1},
		"web-0":         {1181096325, 0, 0, 1},
		"data-my-set-3": {376462279, 3, 1, 2},
		"mypvc":         {3965572304, 0, 2, 0},
		"a-b":           {2191299127, 0, 1, 3},
		"data-web-":     {4283126325, 0, 0, 1},
		"x-007":         {84696423, 7, 1, 2},
		"x-+1":          {3375410936, 0, 2, 0},
		"x--1":          {2166136261, 1, 2, 2},
		"x-4294967295":  {84696423, 4294967295, 2, 2},
		"x-4294967296":  {1954540022, 0, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hash, ordinal := spreadKey(name, "uid")
			if hash != tc.wantHash || ordinal != tc.wantOrdinal {
				t.Errorf("hash %d, ordinal %d, want %d, %d", hash, ordinal, tc.wantHash, tc.wantOrdinal)
			}
			if got3, got4 := spread(name, "uid", 3), spread(name, "uid", 4); got3 != tc.want3 || got4 != tc.want4 {
				t.Errorf("of 3: %d, of 4: %d, want %d, %d", got3, got4, tc.want3, tc.want4)
			}
		})
	}
	first := spread("", "uid-1", 1<<20)
	if again, other := spread("", "uid-1", 1<<20), spread("", "uid-2", 1<<20); again != first || other == first {
		t.Errorf("claims without a name: %d, again %d, another UID %d, want them to go by their UID", first, again, other)
	}
}

// Replicas of one set walk through the terms one by one, whatever the set is called.
func FuzzSpread(f *testing.F) {
	for _, name := range []string{"data-web-0", "x-007", "x-+1", "x--1", "x-4294967295", "x-4294967296", "-", "a_b-1", "a-1_0"} {
		f.Add(name, uint16(3), uint16(7))
	}
	f.Fuzz(func(t *testing.T, name string, n, replica uint16) {
		terms := int(n) + 1
		if name == "" {
			name = "-"
		}
		if got, want := spread(name, "uid", terms), naiveSpread(name, terms); got != want {
			t.Fatalf("spread(%q, %d) = %d, want %d", name, terms, got, want)
		}
		i := spread(name+"-"+strconv.Itoa(int(replica)), "uid", terms)
		j := spread(name+"-"+strconv.Itoa(int(replica)+1), "uid", terms)
		if hash, ordinal := spreadKey(name+"-0", "uid"); ordinal == 0 && uint64(hash)+uint64(replica)+1 < 1<<32 && j != (i+1)%terms {
			t.Fatalf("replicas %d and %d of %q begin at %d and %d of %d", replica, replica+1, name, i, j, terms)
		}
	})
}
