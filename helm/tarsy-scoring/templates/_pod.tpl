{{/* What all pods have in common: nothing that they do not need. */}}

{{- define "tarsy-scoring.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Apart from each other, where the scheduler can. */}}
{{- define "tarsy-scoring.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "tarsy-scoring.selector" $ | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* Where the operator wants these pods. */}}
{{- define "tarsy-scoring.placing" -}}
{{- $values := (index .root.Values .component).pod -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.container" -}}
image: {{ include "tarsy-scoring.image" . }}
{{ include "tarsy-scoring.contained" . }}
{{- end -}}

{{/* Of the image with the extras, which `insights` and `notify` need: the same repository and tag with the suffix -extras. */}}
{{- define "tarsy-scoring.containerWithExtras" -}}
image: {{ .Values.image.repository }}-extras:{{ .Values.image.tag | default .Chart.AppVersion }}
{{ include "tarsy-scoring.contained" . }}
{{- end -}}

{{- define "tarsy-scoring.contained" -}}
imagePullPolicy: IfNotPresent
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tarsy-scoring.annotations" -}}
{{- if .root.Values.config }}
checksum/config: {{ toYaml .root.Values.config | sha256sum }}
{{- end }}
{{- with (index .root.Values .component).pod.annotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Probes of what serves /healthz and /readyz. A wait for the database is no reason to be killed: only /readyz sees it. */}}
{{- define "tarsy-scoring.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 3
{{- end -}}

{{/* One variable out of an existing Secret. Takes (dict "variable" ... "secret" ... "key" ...). */}}
{{- define "tarsy-scoring.fromSecret" -}}
- name: {{ .variable }}
  valueFrom:
    secretKeyRef: {name: {{ .secret }}, key: {{ .key }}}
{{- end -}}

{{/* How the service's PostgreSQL is reached; for `migrate` on the way that `migrations` names. */}}
{{- define "tarsy-scoring.migrationVariables" -}}
{{- $database := .Values.database }}
{{- with .Values.migrations }}
{{- $secret := .existingSecret | default $database.existingSecret }}
{{ include "tarsy-scoring.fromSecret" (dict "variable" "SCORING_DATABASE_URL" "secret" $secret "key" (.key | default $database.key)) }}
- {name: SCORING_DATABASE_SCHEMA, value: {{ $database.schema | quote }}}
{{- end }}
{{- end -}}

{{/* For programs: with the role that `database.of` names for this one, if any. Takes (dict "root" . "component" ...). */}}
{{- define "tarsy-scoring.databaseVariables" -}}
{{- $of := index .root.Values.database.of .component | default dict }}
{{- with .root.Values.database }}
{{ include "tarsy-scoring.fromSecret" (dict "variable" "SCORING_DATABASE_URL" "secret" ($of.existingSecret | default .existingSecret) "key" ($of.key | default .key)) }}
- {name: SCORING_DATABASE_SCHEMA, value: {{ .schema | quote }}}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.kafkaVariables" -}}
{{- with .Values.kafka }}
- {name: SCORING_KAFKA_BOOTSTRAP_SERVERS, value: {{ .bootstrapServers | quote }}}
- {name: SCORING_KAFKA_SECURITY_PROTOCOL, value: {{ .securityProtocol }}}
{{- if hasPrefix "SASL" .securityProtocol }}
- {name: SCORING_KAFKA_SASL_MECHANISM, value: {{ .sasl.mechanism }}}
{{- if eq .sasl.mechanism "OAUTHBEARER" }}
- {name: SCORING_KAFKA_OAUTH_TOKEN_FILE, value: {{ .sasl.oauthTokenFile | quote }}}
{{- else }}
- {name: SCORING_KAFKA_SASL_USERNAME, value: {{ .sasl.username | quote }}}
{{ include "tarsy-scoring.fromSecret" (dict "variable" "SCORING_KAFKA_SASL_PASSWORD" "secret" .sasl.existingSecret "key" .sasl.key) }}
{{- end }}
{{- end }}
{{- if .tls.existingSecret }}
{{- range $variable, $key := dict "CA_FILE" .tls.caKey "CERT_FILE" .tls.certificateKey "KEY_FILE" .tls.privateKeyKey }}
{{- if $key }}
- {name: SCORING_KAFKA_{{ $variable }}, value: /etc/tarsy-scoring/kafka/{{ $key }}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.timelineVariables" -}}
{{- with .Values.timeline }}
- {name: SCORING_TIMELINE_SOURCE, value: {{ .source }}}
{{- if eq .source "tarsy-db" }}
{{ include "tarsy-scoring.fromSecret" (dict "variable" "SCORING_TIMELINE_DATABASE_URL" "secret" .existingSecret "key" (.key | default "SCORING_TIMELINE_DATABASE_URL")) }}
{{- else if eq .source "tarsy-api" }}
- {name: SCORING_TIMELINE_API_URL, value: {{ .apiUrl | quote }}}
{{- if .existingSecret }}
- {name: SCORING_TIMELINE_API_TOKEN_FILE, value: /etc/tarsy-scoring/timeline/token}
{{- end }}
{{- if .apiCa.existingSecret }}
- {name: SCORING_TIMELINE_API_CA_FILE, value: /etc/tarsy-scoring/timeline/ca.crt}
{{- end }}
{{- else if eq .source "files" }}
- {name: SCORING_TIMELINE_DIR, value: {{ .dir | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Variables of every program but `migrate`. Each of them reads `config`, which may name any of these variables. Takes
(dict "root" . "component" ...).
*/}}
{{- define "tarsy-scoring.variables" -}}
{{- include "tarsy-scoring.databaseVariables" . }}
{{- with .root }}
{{- include "tarsy-scoring.kafkaVariables" . }}
{{- with .Values.judge.baseUrl }}
- {name: OPENAI_BASE_URL, value: {{ . | quote }}}
{{- end }}
{{- with .Values.judge.model }}
- {name: SCORING_JUDGE_MODEL, value: {{ . | quote }}}
{{- end }}
{{- if .Values.config }}
- {name: SCORING_CONFIG, value: /etc/tarsy-scoring/config/config.yaml}
{{- end }}
{{- range $name, $value := .Values.env }}
{{- if ne (toString $value) "" }}
- {name: {{ $name }}, value: {{ include "tarsy-scoring.text" $value | quote }}}
{{- end }}
{{- end }}
{{- range $name, $source := .Values.secretEnv }}
{{ include "tarsy-scoring.fromSecret" (dict "variable" $name "secret" $source.existingSecret "key" $source.key) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The CA of the database alone: all that a hook job mounts, since nothing else is there before an installation. */}}
{{- define "tarsy-scoring.databaseMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.database.ca.existingSecret }}
- {name: database-ca, mountPath: /etc/tarsy-scoring/database, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.databaseVolumes" -}}
- {name: tmp, emptyDir: {sizeLimit: 256Mi}}
{{- with .Values.database.ca }}
{{- if .existingSecret }}
- name: database-ca
  secret: {secretName: {{ .existingSecret }}, defaultMode: 288, items: [{key: {{ .key }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether TARSy's API is read with a token or a CA of its own. */}}
{{- define "tarsy-scoring.hasTimelineFiles" -}}
{{- with .Values.timeline }}
{{- if and (eq .source "tarsy-api") (or .existingSecret .apiCa.existingSecret) }}yes{{ end }}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.mounts" -}}
{{ include "tarsy-scoring.databaseMounts" .root }}
{{- if .root.Values.config }}
- {name: config, mountPath: /etc/tarsy-scoring/config, readOnly: true}
{{- end }}
{{- if .root.Values.kafka.tls.existingSecret }}
- {name: kafka-tls, mountPath: /etc/tarsy-scoring/kafka, readOnly: true}
{{- end }}
{{- if eq (include "tarsy-scoring.hasTimelineFiles" .root) "yes" }}
- {name: timeline, mountPath: /etc/tarsy-scoring/timeline, readOnly: true}
{{- end }}
{{- with (index .root.Values .component).pod.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tarsy-scoring.volumes" -}}
{{ include "tarsy-scoring.databaseVolumes" .root }}
{{- if .root.Values.config }}
- name: config
  configMap: {name: {{ include "tarsy-scoring.name" .root }}-config}
{{- end }}
{{- with .root.Values.kafka.tls.existingSecret }}
- name: kafka-tls
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
{{- if eq (include "tarsy-scoring.hasTimelineFiles" .root) "yes" }}
# As files, which follow their Secrets: a token that is changed is used with the next call.
- name: timeline
  projected:
    defaultMode: 288
    sources:
      {{- with .root.Values.timeline }}
      {{- if .existingSecret }}
      - secret: {name: {{ .existingSecret }}, items: [{key: {{ .key | default "SCORING_TIMELINE_API_TOKEN" }}, path: token}]}
      {{- end }}
      {{- if .apiCa.existingSecret }}
      - secret: {name: {{ .apiCa.existingSecret }}, items: [{key: {{ .apiCa.key }}, path: ca.crt}]}
      {{- end }}
      {{- end }}
{{- end }}
{{- with (index .root.Values .component).pod.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
