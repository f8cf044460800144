package nodelocal

import (
	"fmt"
	"hash/fnv"
)

const (
	maxLabelBytes = 63
	hashBytes     = 8
)

// ManagedBy returns the value of the managed-by label of the capacity objects that the instance of one node keeps:
// base and node joined by a dash, with a hash in place of what does not fit into a label's 63 bytes. Without a
// node it is base, without base the node or its hash. It must stay the same for ever: another value orphans the
// objects of earlier releases.
func ManagedBy(base, node string) string {
	switch {
	case node == "":
		return base
	case base == "" && len(node) <= maxLabelBytes:
		return node
	case base == "":
		return hash(node)
	}
	whole := base + "-" + node
	if len(whole) <= maxLabelBytes {
		return whole
	}
	if rest := maxLabelBytes - len(node) - hashBytes - len("--"); rest > 0 {
		return base[:min(rest, len(base))] + "-" + hash(base) + "-" + node
	}
	return base[:min(maxLabelBytes-hashBytes-len("-"), len(base))] + "-" + hash(whole)
}

// hash is 32-bit FNV-1a in eight hex digits.
func hash(s string) string {
	h := fnv.New32a()
	h.Write([]byte(s))
	return fmt.Sprintf("%08x", h.Sum32())
}
