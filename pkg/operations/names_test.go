package operations

import (
	"encoding/base64"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func encodeBase64(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

func TestNames(t *testing.T) {
	central := names{lease: "csi-example-com", driver: testDriver}
	node := names{lease: "csi-example-com", driver: testDriver, node: "node-1"}
	if got, want := node.of(3), "csi-example-com-"+hashOf("node-1")+"-op-3"; got != want || len(hashOf("node-1")) != 16 {
		t.Errorf("%q, want %q", got, want)
	}
	for name, want := range map[string]int{
		"csi-example-com-op-0": 0, "csi-example-com-op-17": 17, "csi-example-com-op-": -1, "csi-example-com-op-01": -1,
		"csi-example-com-op--1": -1, "csi-example-com-op-+1": -1, "csi-example-com": -1, node.of(0): -1,
		"csi-example-com-op-99999999999999999999": -1,
	} {
		number, ok := central.number(name)
		if !ok {
			number = -1
		}
		if number != want {
			t.Errorf("%s: %d, want %d", name, number, want)
		}
	}
}

func TestLabelsAreValid(t *testing.T) {
	for _, driver := range []string{testDriver, strings.Repeat("d", 63), strings.Repeat("d", 100), "bad/name"} {
		for key, value := range (names{lease: "l", driver: driver, node: strings.Repeat("n", 253)}).labels() {
			if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 {
				t.Errorf("label %s=%s of driver %s: %v", key, value, driver, msgs)
			}
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	_, err := New(Config{LeaseName: "a_b", Duration: 1})
	for _, want := range []string{"no Leases", "no Rights", "no Driver", "no Identity", "no Listener", "less than a second", "cannot be the name of a Lease"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
