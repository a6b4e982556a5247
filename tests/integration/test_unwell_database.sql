CREATE SEQUENCE tried;
CREATE FUNCTION fail(state text, times int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('tried') <= times THEN RAISE 'planted' USING ERRCODE = state; END IF;
  RETURN 'done';
END $$
