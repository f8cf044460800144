package topology

import (
	"fmt"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	// encodeFrom is the length from which a list is worth to be encoded once: below it costs less than to look it up.
	encodeFrom = 16
	// encodedLists is how many lists an Encoder remembers: those of the cluster's segments, and those of classes with
	// allowedTopologies.
	encodedLists = 16
	// encodedBytes is how long the encodings of these lists are together at most. The latest list is remembered
	// whatever its length is.
	encodedBytes = 16 << 20
)

// Field numbers of csi.TopologyRequirement.
const (
	fieldRequisite protowire.Number = 1
	fieldPreferred protowire.Number = 2
)

// Encoder turns requirements that share one list of terms into requirements that share one encoding of it, so
// that a call costs a copy of bytes and not the marshalling of every term twice. The zero value is ready for
// use, also concurrently.
type Encoder struct {
	mu sync.Mutex
	// recent holds the lists seen last, the latest first.
	recent []*encodedList
}

// encodedList is a list of terms in the form
//
//	preferred 0 … n-1 │ requisite 0 … n-1 │ preferred 0 … n-1
//
// Fields of a message may come in any order, so for each i the bytes from preferred i on the left to preferred
// i-1 on the right are a whole requirement: all of requisite, and preferred rotated by i.
type encodedList struct {
	// terms is the list. Holding it keeps its members from being freed, so that their addresses name them.
	terms []*csi.Topology
	bytes []byte
	// left and right give where each preferred term begins in the left part and in the right part.
	left, right []int
}

// Compact returns a requirement that is the same on the wire as r. When r is a list and its rotation, as Require
// makes them, the result carries them encoded: its getters then show nothing. Any other r is returned as it
// is. The terms that r points to must never change.
func (e *Encoder) Compact(r *csi.TopologyRequirement) (*csi.TopologyRequirement, error) {
	n := len(r.GetRequisite())
	if n < encodeFrom || len(r.GetPreferred()) != n || len(r.ProtoReflect().GetUnknown()) > 0 {
		return r, nil
	}
	first := rotation(r.GetRequisite(), r.GetPreferred())
	if first < 0 {
		return r, nil
	}
	list, err := e.encoded(r.GetRequisite())
	if err != nil {
		return nil, err
	}
	compact := &csi.TopologyRequirement{}
	compact.ProtoReflect().SetUnknown(list.bytes[list.left[first]:list.right[first]])
	return compact, nil
}

// rotation returns by how much preferred is requisite rotated, or -1 when it is not. Both hold the same terms, not
// only equal ones.
func rotation(requisite, preferred []*csi.Topology) int {
	first := slices.Index(requisite, preferred[0])
	if first < 0 {
		return -1
	}
	left := len(requisite) - first
	if slices.Equal(requisite[first:], preferred[:left]) && slices.Equal(requisite[:first], preferred[left:]) {
		return first
	}
	return -1
}

// encoded returns the encoding of a list, remembered or new.
func (e *Encoder) encoded(terms []*csi.Topology) (*encodedList, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.IndexFunc(e.recent, func(l *encodedList) bool { return slices.Equal(l.terms, terms) })
	var list *encodedList
	if at >= 0 {
		list = e.recent[at]
		e.recent = slices.Delete(e.recent, at, at+1)
	} else {
		var err error
		if list, err = encodeList(terms); err != nil {
			return nil, err
		}
	}
	e.recent = slices.Insert(e.recent, 0, list)
	e.forget()
	return list, nil
}

// forget drops the lists used longest ago until the rest is within the bounds. mu is held.
func (e *Encoder) forget() {
	size := 0
	for i, l := range e.recent {
		if size += len(l.bytes); i == encodedLists || i > 0 && size > encodedBytes {
			e.recent = slices.Delete(e.recent, i, len(e.recent))
			return
		}
	}
}

func encodeList(terms []*csi.Topology) (*encodedList, error) {
	n := len(terms)
	list := &encodedList{terms: terms, left: make([]int, n), right: make([]int, n)}
	encoded := make([][]byte, n)
	size := 0
	for i, t := range terms {
		var err error
		if encoded[i], err = (proto.MarshalOptions{Deterministic: true}).Marshal(t); err != nil {
			return nil, fmt.Errorf("encode topology {%s}: %w", SegmentOf(t.GetSegments()), err)
		}
		size += protowire.SizeTag(fieldPreferred) + protowire.SizeBytes(len(encoded[i]))
	}
	list.bytes = make([]byte, 0, 3*size)
	appendAll := func(field protowire.Number, starts []int) {
		for i, b := range encoded {
			if starts != nil {
				starts[i] = len(list.bytes)
			}
			list.bytes = protowire.AppendTag(list.bytes, field, protowire.BytesType)
			list.bytes = protowire.AppendBytes(list.bytes, b)
		}
	}
	appendAll(fieldPreferred, list.left)
	appendAll(fieldRequisite, nil)
	appendAll(fieldPreferred, list.right)
	return list, nil
}
