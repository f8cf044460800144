package volume

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

const (
	// WholeUID as a UUID length keeps the claim's UID as it is, with its dashes.
	WholeUID = -1

	uidDigits = 32 // of a UID without its dashes
	uidLength = 36 // with them
)

// CheckNaming reports why volumes cannot be named with this prefix and UUID length, nil when they can. It is for
// the start of the process: what it accepts makes valid names of PersistentVolumes for every claim with a
// UID of the usual form.
func CheckNaming(prefix string, uuidLength int) error {
	if prefix == "" {
		return errors.New("the volume name prefix is empty")
	}
	if uuidLength == 0 || uuidLength < WholeUID {
		return fmt.Errorf("the volume name UUID length %d is not usable: it must be -1 (the whole UID) or at least 1", uuidLength)
	}
	length := min(uuidLength, uidDigits)
	if uuidLength == WholeUID {
		length = uidLength
	}
	if problems := validation.IsDNS1123Subdomain(prefix + "-" + strings.Repeat("0", length)); len(problems) > 0 {
		return fmt.Errorf("the volume name prefix %q does not give valid names: %s", prefix, strings.Join(problems, ", "))
	}
	return nil
}

// Name returns the name of the volume, and of the PersistentVolume, for the claim with this UID: the prefix and
// the first uuidLength digits of the UID without dashes, or the UID as it is for WholeUID. A length above 32
// means 32. Errors are Failed.
func Name(prefix string, uuidLength int, uid types.UID) (string, error) {
	if err := CheckNaming(prefix, uuidLength); err != nil {
		return "", outcome.With(outcome.Failed, err)
	}
	if uid == "" {
		return "", outcome.With(outcome.Failed, errors.New("the claim has no UID to name its volume by (missing UID)"))
	}
	if uuidLength == WholeUID {
		return prefix + "-" + string(uid), nil
	}
	digits := strings.ReplaceAll(string(uid), "-", "")
	return prefix + "-" + digits[:min(uuidLength, len(digits))], nil
}
