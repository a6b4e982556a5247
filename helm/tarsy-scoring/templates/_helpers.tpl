{{/* Names and labels. */}}

{{/* The release's name. Helm also takes some that no Service may have, or that leave no room for "-intake" in the 52
characters of a StatefulSet, whose revisions are labels: of those what can be kept, and a hash, so that two releases never
share a name. */}}
{{- define "tarsy-scoring.name" -}}
{{- if regexMatch "^[a-z]([a-z0-9-]{0,43}[a-z0-9])?$" .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "r-%s-%s" (.Release.Name | replace "." "-" | trunc 34 | trimSuffix "-") (.Release.Name | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* What is given as a label may hold: an image's tag is longer, and ends otherwise. */}}
{{- define "tarsy-scoring.labelValue" -}}
{{- regexReplaceAll "[^A-Za-z0-9_.-]" . "_" | trunc 63 | trimAll "-_." | quote -}}
{{- end -}}

{{/* A value as an environment holds it. Numbers of YAML are floats here, and a large one would become 1e+06. */}}
{{- define "tarsy-scoring.text" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{/* What selects the pods of a component. Takes (dict "root" $ "component" "worker"). */}}
{{- define "tarsy-scoring.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "component" "worker"), and what else this object is labelled with as "more". */}}
{{- define "tarsy-scoring.labels" -}}
{{ include "tarsy-scoring.selector" . }}
app.kubernetes.io/version: {{ include "tarsy-scoring.labelValue" (.root.Values.image.tag | default .root.Chart.AppVersion) }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "tarsy-scoring.labelValue" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) }}
{{- with merge (dict) (.more | default dict) .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.podLabels" -}}
{{ include "tarsy-scoring.labels" (dict "root" .root "component" .component "more" .root.Values.podLabels) }}
{{- end -}}

{{- define "tarsy-scoring.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "tarsy-scoring.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "tarsy-scoring.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* The host names by which clients reach the API: its Service, the ingress, a port-forward, and those of the values. */}}
{{- define "tarsy-scoring.apiHosts" -}}
{{- $service := printf "%s-api" (include "tarsy-scoring.name" .) }}
{{- $inNamespace := printf "%s.%s" $service .Release.Namespace }}
{{- $hosts := list $service $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) "localhost" "127.0.0.1" }}
{{- if .Values.api.ingress.enabled }}{{ $hosts = append $hosts .Values.api.ingress.host }}{{ end }}
{{- concat $hosts .Values.api.hosts | uniq | join "," }}
{{- end -}}

{{/* A rule of a NetworkPolicy's egress: these peers on these ports. */}}
{{- define "tarsy-scoring.egress" -}}
- ports:
    {{- range .rule.ports }}
    {{- $port := . }}
    {{- range $.protocols }}
    - {port: {{ $port }}, protocol: {{ . }}}
    {{- end }}
    {{- end }}
  {{- with .rule.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Fails unless each of these components that is there has a mount that holds this path. */}}
{{- define "tarsy-scoring.requireMounted" -}}
{{- range $component := .components }}
{{- $values := index $.root.Values $component }}
{{- if ne (toString $values.enabled) "false" }}
{{- $isThere := false }}
{{- range $values.pod.extraVolumeMounts }}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (printf "%s/" $.path) }}{{ $isThere = true }}{{ end }}
{{- end }}
{{- if not $isThere }}
{{- fail (printf "%s: %s is in no mount of %s: bring it by %s.pod.extraVolumes and %s.pod.extraVolumeMounts" $.value $.path $component $component $component) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
