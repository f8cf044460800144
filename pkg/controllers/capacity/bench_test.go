package capacity

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// filled returns a book in which everything is published.
func filled(segments, classes int) (*book, []Key) {
	b := newBook()
	for i := range classes {
		b.setClass(fmt.Sprint("class-", i), nil)
	}
	for i := range segments {
		b.changeSegments([]topology.Segment{place(fmt.Sprint(i%3), fmt.Sprint(i))}, nil)
	}
	keys := b.takeWake()
	for i, key := range keys {
		object := published(key.Class, key.Segment, 1)
		object.Name, object.ResourceVersion = fmt.Sprint("csisc-", i), "1"
		object.UID = types.UID(object.Name)
		b.observe(object)
		b.begin(key)
		b.end(key, false, time.Time{})
	}
	return b, keys
}

// A turn of a pair that is right: what each poll costs besides the call.
func BenchmarkTurn(b *testing.B) {
	for _, segments := range []int{100, 5000} {
		b.Run(fmt.Sprintf("segments=%d/classes=4", segments), func(b *testing.B) {
			book, keys := filled(segments, 4)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				key := keys[i%len(keys)]
				i++
				book.refresh(key)
				book.takeWake()
				book.begin(key)
				v := book.view(key, time.Time{})
				if changes := plan(v, testIdentity, &room{available: 1}); changes.Update != nil || changes.Create != nil {
					b.Fatal("something is to be written")
				}
				book.end(key, false, time.Time{})
			}
		})
	}
}

// An event of an object: it must not depend on how many there are.
func BenchmarkObserve(b *testing.B) {
	for _, segments := range []int{100, 5000} {
		b.Run(fmt.Sprintf("segments=%d/classes=4", segments), func(b *testing.B) {
			book, keys := filled(segments, 4)
			object := book.items[keys[0]].objects[0].last
			versions := [2]string{"2", "3"}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				next := object.DeepCopy()
				next.ResourceVersion = versions[i%2]
				i++
				book.observe(next)
			}
		})
	}
}

// A node that comes and goes, with a segment of its own.
func BenchmarkSegment(b *testing.B) {
	for _, segments := range []int{100, 5000} {
		b.Run(fmt.Sprintf("segments=%d/classes=4", segments), func(b *testing.B) {
			book, _ := filled(segments, 4)
			one := []topology.Segment{place("new", "new")}
			b.ReportAllocs()
			for b.Loop() {
				book.changeSegments(one, nil)
				book.changeSegments(nil, one)
				book.takeWake()
			}
		})
	}
}
