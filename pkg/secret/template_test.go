package secret

import (
	"os"
	"strings"
	"testing"
	"testing/quick"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestExpandName(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		template string
		names    *Names // nil = testNames
		want     string
		wantErr  []string
	}{
		"a fixed name":                        {template: "fixed", want: "fixed"},
		"a name with dots":                    {template: "a.b", want: "a.b"},
		"the volume":                          {template: "s-${pv.name}", want: "s-pvc-1"},
		"the claim":                           {template: "${pvc.namespace}-${pvc.name}", want: "team-a-data"},
		"an annotation":                       {template: "${pvc.annotations['example.com/secret']}", want: "from-annotation"},
		"an annotation that is not there":     {template: "${pvc.annotations['a/b']}", wantErr: []string{"invalid tokens", "pvc.annotations['a/b']"}},
		"an annotation when there are none":   {template: "${pvc.annotations['example.com/secret']}", names: &Names{}, wantErr: []string{"invalid tokens"}},
		"an empty annotation":                 {template: "${pvc.annotations['empty']}", wantErr: []string{"pvc.annotations['empty']", "secret name"}},
		"an annotation without quotes":        {template: "${pvc.annotations[empty]}", wantErr: []string{"invalid tokens"}},
		"an annotation with one quote":        {template: "${pvc.annotations[']}", wantErr: []string{"invalid tokens"}},
		"an annotation that holds a template": {template: "${pvc.annotations['t']}", names: &Names{PVName: "pv", ClaimAnnotations: map[string]string{"t": "${pv.name}"}}, wantErr: []string{`resolves to "${pv.name}"`}},
		"all bad tokens are named once":       {template: "${b}${a}$b${pv.name}", wantErr: []string{`["b" "a"]`}},
		"a token without braces":              {template: "$foo", wantErr: []string{`["foo"]`}},
		"a dot ends a token without braces":   {template: "$pv.name", wantErr: []string{`["pv"]`}},
		"a doubled dollar is a token":         {template: "$$x", wantErr: []string{`["$"]`}},
		"a doubled dollar before a brace":     {template: "$${x", wantErr: []string{`["$"]`}},
		"a dollar at the end":                 {template: "abc$", wantErr: []string{`"abc$"`, "secret name"}},
		"a dollar before a slash":             {template: "a$/b", wantErr: []string{`"a$/b"`, "secret name"}},
		"a token that is not closed":          {template: "${pvc.name", wantErr: []string{`"${pvc.name"`, "without its }"}},
		"a second token that is not closed":   {template: "${pvc.name}-${pv.name", wantErr: []string{`"${pvc.name}-${pv.name"`, "without its }"}},
		"an empty token":                      {template: "a${}b", wantErr: []string{`"a${}b"`}},
		"only an opening":                     {template: "${", wantErr: []string{`"${"`}},
		"braces without a dollar":             {template: "{pvc.name}", wantErr: []string{"secret name"}},
		"two dots in a row":                   {template: "a..b", wantErr: []string{`"a..b" is not a valid secret name`}},
		"capitals":                            {template: "Not_Valid", wantErr: []string{`"Not_Valid" is not a valid secret name`}},
		"too long":                            {template: strings.Repeat("a", 254), wantErr: []string{"secret name"}},
		"both texts are shown when they differ": {
			template: "${pvc.name}_x", wantErr: []string{`"${pvc.name}_x"`, `"data_x"`, "secret name"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := testNames
			if tc.names != nil {
				n = *tc.names
			}
			got, err := expandName(tc.template, n)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestExpandNamespace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		template string
		want     string
		wantErr  []string
	}{
		"a fixed namespace":        {template: "kube-system", want: "kube-system"},
		"the claim's namespace":    {template: "${pvc.namespace}", want: "team-a"},
		"the volume's name":        {template: "ns-${pv.name}", want: "ns-pvc-1"},
		"not the claim's name":     {template: "${pvc.name}", wantErr: []string{`["pvc.name"]`}},
		"not the annotations":      {template: "${pvc.annotations['example.com/secret']}", wantErr: []string{"invalid tokens"}},
		"a label has no dots":      {template: "a.b", wantErr: []string{`"a.b" is not a valid namespace`}},
		"a label has 63 letters":   {template: strings.Repeat("a", 64), wantErr: []string{"namespace"}},
		"a token that is not open": {template: "ns}", wantErr: []string{"namespace"}},
		"a token left open":        {template: "${pvc.namespace", wantErr: []string{`"${pvc.namespace"`, "without its }"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := expandNamespace(tc.template, testNames)
			checkError(t, err, tc.wantErr)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// brokenSyntax agrees with a twin that asks os.Expand itself: the text that is left when each token is put back
// with its braces is the template again, unless something was swallowed.
func TestBrokenSyntaxAgreesWithExpand(t *testing.T) {
	t.Parallel()
	alphabet := []string{"$", "{", "}", "a", "-", "$$", "${a}", "${", "1"}
	agrees := func(picks []uint8) bool {
		var b strings.Builder
		for _, p := range picks {
			b.WriteString(alphabet[int(p)%len(alphabet)])
		}
		template := b.String()
		// Braces are dropped on both sides, and what a token consists of stays. A "${" that is swallowed loses
		// its dollar, which nothing else does.
		plain := strings.NewReplacer("{", "", "}", "")
		kept := plain.Replace(os.Expand(template, func(token string) string { return "$" + token }))
		swallowed := kept != plain.Replace(template)
		return swallowed == brokenSyntax(template)
	}
	if err := quick.Check(agrees, &quick.Config{MaxCount: 4000}); err != nil {
		t.Error(err)
	}
}

// FuzzResolve: expanding never panics, and what it yields is valid or an error.
func FuzzResolve(f *testing.F) {
	for _, template := range []string{
		"fixed", "${pvc.name}", "${pv.name}-${pvc.namespace}", "${pvc.annotations['k']}", "${pvc.annotations['", "$", "$$", "${}",
		"${x", "a${", "$*", "${*}", "$1", "a..b", "\x00", "${pvc.annotations['}']}",
	} {
		f.Add(template, "ns", "value")
		f.Add("name", template, "Value")
	}
	f.Fuzz(func(t *testing.T, name, namespace, value string) {
		n := Names{PVName: value, ClaimName: value, ClaimNamespace: value, ClaimAnnotations: map[string]string{"k": value}}
		ref, err := Resolve(Provisioner, map[string]string{Provisioner.nameKey: name, Provisioner.namespaceKey: namespace}, n)
		if err != nil {
			if ref != nil {
				t.Errorf("a reference %v beside the error %v", ref, err)
			}
			return
		}
		if ref == nil {
			t.Fatal("no reference although both keys are there")
		}
		if p := validation.IsDNS1123Label(ref.Namespace); len(p) > 0 {
			t.Errorf("namespace %q: %v", ref.Namespace, p)
		}
		if p := validation.IsDNS1123Subdomain(ref.Name); len(p) > 0 {
			t.Errorf("name %q: %v", ref.Name, p)
		}
		if !strings.Contains(name, "$") && ref.Name != name {
			t.Errorf("name %q became %q without a token", name, ref.Name)
		}
	})
}
