package process

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Holder is one process as it appears in leases. The zero value stands for no process.
//
// Its identity is "<pod>_<random>", as that of most controllers: what reads the pod from it takes the part before "_",
// which no pod's name has. The random part is new in each process, so that no two ever have one identity.
type Holder struct {
	pod string
	// place, if not empty, says where the process lock of this process is held; it is the first half of the random part.
	place  string
	random string
}

// NewHolder returns the holder that this process is, and tries to take the process lock of the driver in the pod. It is
// called once for a driver. pod is the result of PodName; podUID may be empty.
//
// The process lock is held by at most one process of the pod, and the kernel frees it when that process ends: whoever has
// it knows that all earlier holders of it are dead; see Replaces. The error says why this process does not have it. The
// holder is usable all the same, and waits for the leases of earlier processes of its pod as for those of any other.
func NewHolder(driver, pod, podUID string) (Holder, error) {
	h := Holder{pod: pod, random: randomHex()}
	place, err := takeProcessLock("csi-provisioner-" + digest(driver, cmp.Or(podUID, pod)))
	if err != nil {
		return h, fmt.Errorf("take the process lock of the pod: %w", err)
	}
	h.place = digest(place)
	return h, nil
}

// Identity returns the holderIdentity of leases.
func (h Holder) Identity() string {
	if h.place == "" {
		return h.pod + "_" + h.random
	}
	return h.pod + "_" + h.place + "-" + h.random
}

// Pod returns the part of the identity that names the pod.
func (h Holder) Pod() string { return h.pod }

// Replaces reports whether identity is that of an earlier process, now dead, of the same pod: it held the process lock that
// this process holds. Its leases may be taken over at once.
func (h Holder) Replaces(identity string) bool {
	return h.place != "" && strings.HasPrefix(identity, h.pod+"_"+h.place+"-") && identity != h.Identity()
}

// digest returns 16 hexadecimal digits that stand for the words.
func digest(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// randomHex returns 16 random hexadecimal digits.
func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
