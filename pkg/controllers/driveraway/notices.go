package driveraway

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxClaims is how many claims get an event of their own during one absence of the driver.
const maxClaims = 100

// notices remembers who was told during one absence of the driver. The zero value has told nobody. Not safe for
// concurrent use.
type notices struct {
	since    time.Time // when the absence began; zero while the driver is connected
	claims   map[types.UID]struct{}
	overflow bool // an event has told that more than maxClaims wait
}

// next returns the claims that are to be told now that the driver has been away since then, at least for after; each is
// returned once during an absence. waiting are the claims that wait for the driver, those first that are to be told
// first. overflow is their number when it is more than maxClaims and was not told yet, else zero. A zero since means
// that the driver is connected: nobody is told, and the next absence begins with nobody told.
func (n *notices) next(now, since time.Time, after time.Duration, waiting []*corev1.PersistentVolumeClaim) (tell []*corev1.PersistentVolumeClaim, overflow int) {
	if !since.Equal(n.since) {
		*n = notices{since: since}
	}
	if since.IsZero() || now.Sub(since) < after {
		return nil, 0
	}
	if n.claims == nil {
		n.claims = map[types.UID]struct{}{}
	}
	for _, claim := range waiting {
		if len(n.claims) == maxClaims {
			break
		}
		if _, told := n.claims[claim.UID]; !told {
			n.claims[claim.UID] = struct{}{}
			tell = append(tell, claim)
		}
	}
	if len(waiting) > maxClaims && !n.overflow {
		n.overflow = true
		overflow = len(waiting)
	}
	return tell, overflow
}
