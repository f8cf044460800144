package volume

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

const testUID = types.UID("9c1a3f4e-21d7-4b6a-8f5e-0a1b2c3d4e5f")

func TestName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prefix  string
		length  int
		uid     types.UID
		want    string
		wantErr string
	}{
		"the whole UID keeps its dashes":      {prefix: "pvc", length: -1, uid: testUID, want: "pvc-9c1a3f4e-21d7-4b6a-8f5e-0a1b2c3d4e5f"},
		"a length drops the dashes":           {prefix: "test", length: 10, uid: testUID, want: "test-9c1a3f4e21"},
		"a length of one":                     {prefix: "pvc", length: 1, uid: testUID, want: "pvc-9"},
		"all digits":                          {prefix: "pvc", length: 32, uid: testUID, want: "pvc-9c1a3f4e21d74b6a8f5e0a1b2c3d4e5f"},
		"more than there are means all":       {prefix: "pvc", length: 33, uid: testUID, want: "pvc-9c1a3f4e21d74b6a8f5e0a1b2c3d4e5f"},
		"far more than there are":             {prefix: "pvc", length: 1 << 30, uid: testUID, want: "pvc-9c1a3f4e21d74b6a8f5e0a1b2c3d4e5f"},
		"a short UID":                         {prefix: "test", length: 5, uid: "testid", want: "test-testi"},
		"a UID that is shorter than asked":    {prefix: "test", length: 20, uid: "testid", want: "test-testid"},
		"no prefix":                           {length: -1, uid: testUID, wantErr: "prefix"},
		"no UID":                              {prefix: "pvc", length: -1, wantErr: "missing UID"},
		"no UID and a length":                 {prefix: "pvc", length: 4, wantErr: "missing UID"},
		"a length of zero":                    {prefix: "pvc", length: 0, uid: testUID, wantErr: "length 0"},
		"a length below minus one":            {prefix: "pvc", length: -2, uid: testUID, wantErr: "length -2"},
		"a prefix with a capital":             {prefix: "Pvc", length: -1, uid: testUID, wantErr: `"Pvc"`},
		"a prefix with an underscore":         {prefix: "a_b", length: -1, uid: testUID, wantErr: `"a_b"`},
		"a prefix that begins with a dash":    {prefix: "-a", length: -1, uid: testUID, wantErr: `"-a"`},
		"a prefix with a dot is a subdomain":  {prefix: "a.b", length: 4, uid: testUID, want: "a.b-9c1a"},
		"a prefix that ends with a dot":       {prefix: "a.", length: 4, uid: testUID, wantErr: `"a."`},
		"a prefix that leaves no room":        {prefix: strings.Repeat("a", 230), length: -1, uid: testUID, wantErr: "no more than 253"},
		"a long prefix with a short UID part": {prefix: strings.Repeat("a", 230), length: 4, uid: testUID, want: strings.Repeat("a", 230) + "-9c1a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Name(tc.prefix, tc.length, tc.uid)
			checkFailed(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// FuzzName: with any options that the start of the process lets pass, each real UID gives a valid name, and
// there is no other way to get a name.
func FuzzName(f *testing.F) {
	f.Add("pvc", -1)
	f.Add("pvc", 0)
	f.Add("a.b", 7)
	f.Add("", 32)
	f.Add("Ä", 33)
	f.Add("x-", -2)
	f.Fuzz(func(t *testing.T, prefix string, length int) {
		got, err := Name(prefix, length, testUID)
		if usable := CheckNaming(prefix, length) == nil; usable != (err == nil) {
			t.Fatalf("CheckNaming says %v, Name says %v", usable, err)
		}
		if err != nil {
			return
		}
		if p := validation.IsDNS1123Subdomain(got); len(p) > 0 {
			t.Errorf("%q: %v", got, p)
		}
		if !strings.HasPrefix(got, prefix+"-9") {
			t.Errorf("%q does not begin with the prefix and the UID", got)
		}
	})
}

// checkFailed checks that err mentions want, or is nil for "", and is Failed.
func checkFailed(t *testing.T, err error, want string) {
	t.Helper()
	if (err != nil) != (want != "") {
		t.Fatalf("error %v, want one that mentions %q", err, want)
	}
	if err == nil {
		return
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not mention %q", err, want)
	}
	if outcome.Of(err) != outcome.Failed {
		t.Errorf("outcome %s, want Failed", outcome.Of(err))
	}
}
