package topology

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Segment is a set of topology key and value pairs, all of which hold for each node of the segment. It is a
// value: two segments with the same pairs are equal with ==, so it serves as a map key and in queue keys.
// The zero value has no pairs: it stands for storage that is reachable from everywhere.
type Segment struct {
	// encoded holds the pairs, sorted by key, then value: key NUL value NUL key NUL value NUL. NUL sorts before
	// everything else, so the order of two encodings with as many pairs is the order of the pairs.
	encoded string
}

// pair is one key with its value.
type pair struct{ key, value string }

func (p pair) compare(o pair) int {
	return cmp.Or(strings.Compare(p.key, o.key), strings.Compare(p.value, o.value))
}

// SegmentOf returns the segment with these pairs; a nil or empty map gives the segment without pairs.
func SegmentOf(pairs map[string]string) Segment {
	list := make([]pair, 0, len(pairs))
	for key, value := range pairs {
		list = append(list, pair{key, value})
	}
	return segmentOfPairs(list)
}

// SegmentOfTerm returns the segment that a node selector term stands for. It is false for a term that a
// segment cannot express: match fields, or an expression other than In with exactly one value.
func SegmentOfTerm(term corev1.NodeSelectorTerm) (Segment, bool) {
	if len(term.MatchFields) > 0 {
		return Segment{}, false
	}
	list := make([]pair, 0, len(term.MatchExpressions))
	for _, e := range term.MatchExpressions {
		if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
			return Segment{}, false
		}
		list = append(list, pair{e.Key, e.Values[0]})
	}
	return segmentOfPairs(list), true
}

// SegmentOfSelector returns the segment that a label selector stands for: its match labels, where nil and
// empty mean the same. It is false for a nil selector and for one with match expressions.
func SegmentOfSelector(selector *metav1.LabelSelector) (Segment, bool) {
	if selector == nil || len(selector.MatchExpressions) > 0 {
		return Segment{}, false
	}
	return SegmentOf(selector.MatchLabels), true
}

// segmentOfPairs sorts list, which it then owns.
func segmentOfPairs(list []pair) Segment {
	if len(list) == 0 {
		return Segment{}
	}
	slices.SortFunc(list, pair.compare)
	list = slices.Compact(list)
	size := 0
	for _, p := range list {
		size += len(p.key) + len(p.value) + 2
	}
	var b strings.Builder
	b.Grow(size)
	for _, p := range list {
		b.WriteString(escape(p.key))
		b.WriteByte(0)
		b.WriteString(escape(p.value))
		b.WriteByte(0)
	}
	return Segment{encoded: b.String()}
}

// Labels and their keys never hold these two bytes; a driver's answer may. The escapes keep the order.
var (
	escaper   = strings.NewReplacer("\x00", "\x01\x01", "\x01", "\x01\x02")
	unescaper = strings.NewReplacer("\x01\x01", "\x00", "\x01\x02", "\x01")
)

func escape(s string) string {
	if strings.IndexByte(s, 0) < 0 && strings.IndexByte(s, 1) < 0 {
		return s
	}
	return escaper.Replace(s)
}

func unescape(s string) string {
	if strings.IndexByte(s, 1) < 0 {
		return s
	}
	return unescaper.Replace(s)
}

// All yields the pairs, sorted by key, then value.
func (s Segment) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := s.encoded; rest != ""; {
			var key, value string
			key, value, rest = cut(rest)
			if !yield(key, value) {
				return
			}
		}
	}
}

// cut takes the first pair off a non-empty encoding.
func cut(encoded string) (key, value, rest string) {
	key, rest, _ = strings.Cut(encoded, "\x00")
	value, rest, _ = strings.Cut(rest, "\x00")
	return unescape(key), unescape(value), rest
}

// Len returns the number of pairs.
func (s Segment) Len() int { return strings.Count(s.encoded, "\x00") / 2 }

// IsEmpty reports whether there are no pairs.
func (s Segment) IsEmpty() bool { return s.encoded == "" }

// Map returns the pairs as a new map, never nil. Of a key with several values the last one counts.
func (s Segment) Map() map[string]string {
	pairs := make(map[string]string, s.Len())
	maps.Insert(pairs, s.All())
	return pairs
}

// CSI returns the segment as a new CSI topology, never nil.
func (s Segment) CSI() *csi.Topology { return &csi.Topology{Segments: s.Map()} }

// Selector returns a new label selector for the nodes of the segment, never nil: the one without pairs
// selects every node.
func (s Segment) Selector() *metav1.LabelSelector {
	if s.IsEmpty() {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: s.Map()}
}

// Get returns the first value of a key and whether there is one.
func (s Segment) Get(key string) (string, bool) {
	for k, v := range s.All() {
		if k == key {
			return v, true
		}
	}
	return "", false
}

// Project returns the segment of just these keys, which must be sorted. It is false when a key is missing.
func (s Segment) Project(keys []string) (Segment, bool) {
	if s.hasKeys(keys) {
		return s, true
	}
	list := make([]pair, 0, len(keys))
	rest := s.encoded
	for _, want := range keys {
		found := false
		for rest != "" && !found {
			var key, value string
			key, value, rest = cut(rest)
			if found = key == want; found {
				list = append(list, pair{key, value})
			}
		}
		if !found {
			return Segment{}, false
		}
	}
	return segmentOfPairs(list), true
}

// hasKeys reports whether the keys of s are exactly keys, in this order.
func (s Segment) hasKeys(keys []string) bool {
	rest := s.encoded
	for _, want := range keys {
		if rest == "" {
			return false
		}
		var key string
		if key, _, rest = cut(rest); key != want {
			return false
		}
	}
	return rest == ""
}

// In reports whether every pair of s occurs in other. The segment without pairs is in every other.
func (s Segment) In(other Segment) bool {
	theirs := other.encoded
	for rest := s.encoded; rest != ""; {
		mine := encodedPair(rest)
		rest = rest[len(mine):]
		found := false
		for theirs != "" && !found {
			next := encodedPair(theirs)
			theirs = theirs[len(next):]
			found = mine == next
		}
		if !found {
			return false
		}
	}
	return true
}

// encodedPair returns the first pair of a non-empty encoding, as it is encoded.
func encodedPair(encoded string) string {
	key := strings.IndexByte(encoded, 0) + 1
	return encoded[:key+strings.IndexByte(encoded[key:], 0)+1]
}

// Compare orders segments: fewer pairs first, then pair by pair, key before value, byte-wise.
func Compare(a, b Segment) int {
	return cmp.Or(cmp.Compare(a.Len(), b.Len()), strings.Compare(a.encoded, b.encoded))
}

// Canonical returns the segments sorted by Compare and without duplicates, in a new slice. A segment that
// another one implies stays.
func Canonical(segments []Segment) []Segment {
	sorted := slices.Clone(segments)
	slices.SortFunc(sorted, Compare)
	return slices.Compact(sorted)
}

// String returns the pairs as they are written for people: zone=a,rack=b.
func (s Segment) String() string {
	var b strings.Builder
	for key, value := range s.All() {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(key + "=" + value)
	}
	return b.String()
}

// MarshalText returns String, so that JSON logs show the pairs.
func (s Segment) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
