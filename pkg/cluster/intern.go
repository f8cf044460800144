package cluster

import "sync"

// maxInterned and maxInternedBytes bound what an interner remembers, and maxInternedKey the longest key worth sharing.
const maxInterned, maxInternedBytes, maxInternedKey = 4096, 1 << 20, 4 << 10

// interner makes equal values one: the same class name in 20,000 claims is kept once. When it is full it forgets all, since
// it cannot tell what is gone; values that are still used stay shared by those that have them.
type interner[K comparable, V any] struct {
	size func(key K) int // in bytes

	mu     sync.Mutex
	values map[K]V // key → the value that all share
	bytes  int     // of the keys
}

func newInterner[K comparable, V any](size func(K) int) *interner[K, V] {
	return &interner[K, V]{size: size, values: map[K]V{}}
}

// get returns the shared value of key, made by the first caller.
func (i *interner[K, V]) get(key K, create func() V) V {
	i.mu.Lock()
	defer i.mu.Unlock()
	if value, ok := i.values[key]; ok {
		return value
	}
	value, size := create(), i.size(key)
	if size > maxInternedKey {
		return value
	}
	if len(i.values) >= maxInterned || i.bytes+size > maxInternedBytes {
		clear(i.values)
		i.bytes = 0
	}
	i.values[key] = value
	i.bytes += size
	return value
}
