package operations

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// hashOf returns 16 hexadecimal digits.
func hashOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// names are those of the Leases of one process and its replicas.
type names struct{ lease, driver, node string }

// prefix is what their names begin with. The name of an object has no upper case, that of a driver may.
func (n names) prefix() string {
	if n.node == "" {
		return strings.ToLower(n.lease) + "-op-"
	}
	return strings.ToLower(n.lease) + "-" + hashOf(n.node) + "-op-"
}

// of returns the name of a slot.
func (n names) of(number int) string { return n.prefix() + strconv.Itoa(number) }

// number returns the slot's number, and false for a name that none of ours has.
func (n names) number(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, n.prefix())
	if !ok {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 0 && n.of(number) == name
}

func (n names) labels() map[string]string {
	driver := n.driver
	if len(validation.IsValidLabelValue(driver)) > 0 {
		driver = hashOf(driver)
	}
	l := map[string]string{wellknown.LabelOperationsOf: driver}
	if n.node != "" {
		l[wellknown.LabelOperationsNode] = hashOf(n.node)
	}
	return l
}

func (n names) selector() string { return labels.SelectorFromSet(n.labels()).String() }

// check says why no Lease can have such a name, nil if one can.
func (n names) check() error {
	name := n.of(maxOperations)
	if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
		return fmt.Errorf("%q cannot be the name of a Lease: %s", name, strings.Join(msgs, "; "))
	}
	return nil
}
