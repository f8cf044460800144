package topology

import (
	"hash/fnv"
	"strconv"
	"strings"
)

// spread returns where in a list of n terms the claim of this name begins: claims of one StatefulSet walk
// through the list by their ordinal, and the claims that one replica has of several templates begin at the same
// term. uid stands in for an empty name, which does not happen.
func spread(name, uid string, n int) int {
	hash, ordinal := spreadKey(name, uid)
	// 32-bit addition wraps around, and has to: that is how the original adds.
	return int((hash + ordinal) % uint32(n)) //nolint:gosec // n is the length of a list
}

// spreadKey splits a claim's name, <template>-<set>-<ordinal>, and hashes what the claims of a set have in common.
func spreadKey(name, uid string) (hash, ordinal uint32) {
	if name == "" {
		return fnv1(uid), 0
	}
	last := strings.LastIndexByte(name, '-')
	if last < 0 {
		return fnv1(name), 0
	}
	number, err := strconv.ParseUint(name[last+1:], 10, 32)
	if err != nil {
		return fnv1(name), 0
	}
	set := name[:last]
	return fnv1(set[strings.LastIndexByte(set, '-')+1:]), uint32(number)
}

// fnv1 is 32-bit FNV-1, which multiplies first. The managed-by label uses FNV-1a.
func fnv1(s string) uint32 {
	h := fnv.New32()
	h.Write([]byte(s))
	return h.Sum32()
}
