package driver

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// withSecret returns a request with one secret.
func withSecret(value string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Secrets: map[string]string{"key": value}}
}

func marshal(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Whichever way a driver writes a secret into its error or answer, neither shows it.
func TestSecretsAreFoundInEachForm(t *testing.T) {
	t.Parallel()
	const pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
	values := map[string]string{
		"a password":                  "hunter2-hunter2",
		"a password with a backslash": `dom\nick\hunter2-hunter2`,
		"a password with a quote":     `hun"ter2<&>'hun"ter2`,
		"a password with a percent":   `100%41 "safe" hunter2`,
		"a password beyond ASCII":     "pässwörd-\u2028-\U0001f600-\x01hunter2",
		"a key with lines":            pem,
		"a key with other line ends":  strings.ReplaceAll(pem, "\n", "\r\n"),
		"a JSON file":                 marshal(t, map[string]any{"type": "x", "keys": []string{pem}, "n": 1}),
	}
	writers := map[string]func(secret string) string{
		"as it is":           func(s string) string { return s },
		"trimmed":            strings.TrimSpace,
		"quoted":             strconv.Quote,
		"quoted in ASCII":    strconv.QuoteToASCII,
		"quoted in a quote":  func(s string) string { return strconv.Quote("cause: " + strconv.Quote(s)) },
		"JSON":               func(s string) string { return marshal(t, map[string]string{"secret": s}) },
		"JSON in a quote":    func(s string) string { return strconv.Quote(marshal(t, []string{s})) },
		"a query":            func(s string) string { return "https://x/?key=" + url.QueryEscape(s) + "&a=b" },
		"a path":             func(s string) string { return "https://x/" + url.PathEscape(s) + "/y" },
		"a query in a quote": func(s string) string { return strconv.Quote("/?a=b c&key=" + url.QueryEscape(s)) },
		"base64":             func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64 in a header": func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte("admin:"+s)) },
		"base64 for URLs":    func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("me:" + s)) },
		"a line of it":       func(s string) string { lines := linesOf(s); return lines[len(lines)/2] },
		"lines in one":       func(s string) string { return strings.Join(linesOf(s), " ") },
		"a struct of Go":     func(s string) string { return fmt.Sprintf("%#v", struct{ Key string }{s}) },
		"a protobuf in text": func(s string) string { return withSecret(s).String() },
		"an answer in the log": func(s string) string {
			reply := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", VolumeContext: map[string]string{"echo": strconv.Quote(s)}}}
			return visible(reply, secretsOf(withSecret(s)))
		},
	}
	for name, value := range values {
		for form, write := range writers {
			text := write(value)
			if value != strings.TrimSpace(value) && form == "base64" {
				text = write(strings.TrimSpace(value))
			}
			got := redactError(status.Error(codes.InvalidArgument, "before "+text+" after"), secretsOf(withSecret(value))).Error()
			for _, trace := range []string{"hunter2", "ter2", "MIIEvQIBADANBgkq", "hkiG9w0BAQEFAASC", base64.RawStdEncoding.EncodeToString([]byte("hunter2-hun"))} {
				if strings.Contains(got, trace) {
					t.Errorf("%s, %s: %s", name, form, got)
				}
			}
			if !strings.Contains(got, stripped) || !strings.HasPrefix(got, "rpc error: code = InvalidArgument desc = before ") || !strings.HasSuffix(got, " after") {
				t.Errorf("%s, %s: %s, want what stands around the secret", name, form, got)
			}
		}
	}
}

// What a driver decodes of a JSON file, and shows by itself, is secret, too.
func TestStringsInJSONAreSecret(t *testing.T) {
	t.Parallel()
	hidden := secretsOf(withSecret(`{"private_key":"-----BEGIN-----\nMIIEvQIBADANBgkq\n-----END-----\n","type":"account"}`))
	if got, want := hidden.redact("an account with MIIEvQIBADANBgkq is no use"), "an account with ***stripped*** is no use"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Texts that need no redaction stay as they are, whatever they look like.
func TestOtherTextsStay(t *testing.T) {
	t.Parallel()
	hidden := secretsOf(&csi.DeleteVolumeRequest{Secrets: map[string]string{"a": "hunter2-hunter2", "b": "no", "c": "l1\nl2\nlines"}})
	for _, text := range []string{"", "no", `\`, `\x`, `\u12`, `\ud83d\u`, `\777`, `\U00110000`, "%", "%4", "%zz", "100% +1", `C:\new\x41\101`, "l1 l2 lines"} {
		if got := hidden.redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// A secret that contains or overlaps another one is replaced as a whole.
func TestSecretsThatOverlap(t *testing.T) {
	t.Parallel()
	hidden := secretsOf(&csi.DeleteVolumeRequest{Secrets: map[string]string{"a": "pass", "b": "password", "c": "wordpass"}})
	for text, want := range map[string]string{
		"try password and pass": "try ***stripped*** and ***stripped***",
		"try passwordpass":      "try ***stripped***",
	} {
		if got := hidden.redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if got := secretsOf(&csi.ProbeRequest{}); got != nil {
		t.Errorf("secrets of a request that has none: %q", got)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("hunter2-hunter2", "text")
	f.Add(`a"b\c%41+d`, `\n%25+`)
	f.Fuzz(func(t *testing.T, secret, around string) {
		hidden := secretsOf(withSecret(secret))
		if len(hidden) == 0 {
			return
		}
		secret = strings.TrimSpace(secret)
		for _, text := range []string{secret, strconv.Quote(secret), marshal(t, []string{strings.ToValidUTF8(secret, "")}), url.QueryEscape(secret)} {
			if text != secret && strings.ToValidUTF8(secret, "") != secret {
				continue
			}
			if got := hidden.redact(around + text + around); !strings.Contains(got, stripped) {
				t.Errorf("%q is shown in %q", secret, got)
			}
		}
	})
}
