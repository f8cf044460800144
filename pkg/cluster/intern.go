package cluster

import "sync"

// maxInterned bounds what an interner remembers; more values than that are not worth sharing.
const maxInterned = 4096

// interner makes equal values one: the same class name in 20,000 claims is kept once.
type interner[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V // key → the value that all share
}

func newInterner[K comparable, V any]() *interner[K, V] {
	return &interner[K, V]{values: map[K]V{}}
}

// get returns the shared value of key, made by the first caller.
func (i *interner[K, V]) get(key K, create func() V) V {
	i.mu.Lock()
	defer i.mu.Unlock()
	value, ok := i.values[key]
	if !ok {
		value = create()
		if len(i.values) < maxInterned {
			i.values[key] = value
		}
	}
	return value
}
